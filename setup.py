"""Puts the reference workloads inside the package in a wheel: `autotune/bundled`.

In a clone they are folders of their own, to be read and changed. In site-packages a top-level
`workloads` could be anybody's; there `autotune.child.packages` finds them, and they keep the name
under which study files know them.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

BUNDLED = ("autotune", "bundled")


class BuildBundled(build_py):
    """Builds as usual; the workloads go below the package."""

    def get_module_outfile(self, build_dir: str, package: list[str], module: str) -> str:
        """Where a module goes; of an editable install it stays where it is."""
        if package[0] == "workloads" and not self.editable_mode:
            package = [*BUNDLED, *package]
        return str(super().get_module_outfile(build_dir, package, module))


class WheelOfOnePackage(bdist_wheel):
    """A wheel whose list of top-level packages has none that it does not hold."""

    def egg2dist(self, egginfo_path: str, distinfo_path: str) -> None:
        """Turns the metadata of a build into a wheel's."""
        super().egg2dist(egginfo_path, distinfo_path)
        Path(distinfo_path, "top_level.txt").write_text("autotune\n", encoding="ascii")


setup(cmdclass={"build_py": BuildBundled, "bdist_wheel": WheelOfOnePackage})
