"""What several rooms share: flag sets, study files, records, errors, units."""
