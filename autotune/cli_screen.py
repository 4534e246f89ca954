"""The commands that compile without measuring: `screen`, `explain`, `predict`, `targets`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from autotune.flags import FlagSet
    from autotune.screen.calibrate import Held
    from autotune.screen.classify import Screen, ScreenReport, SettingReport
    from autotune.screen.explain import Side
    from autotune.screen.predict import Calibration
    from autotune.screen.targets import Target, Topology
    from autotune.spec import StudySpec

targets_app = typer.Typer(help="The GPUs that can be compiled for.", no_args_is_help=True)

StudyArgument = Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The study file.")]
TargetOption = Annotated[
    str | None, typer.Option(help="GPU (`autotune targets list`) or a .txtpb file; default: the study's CPU.")
]
TopologyOption = Annotated[str | None, typer.Option(help="Nodes x GPUs on each, such as 8x8.")]
OptionOption = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help='Workload option instead of the study\'s: mesh={"fsdp":64}.'),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
CacheOption = Annotated[bool, typer.Option(help="Take what was compiled before from the cache.")]
LimitOption = Annotated[float, typer.Option("--limit", min=1, help="Longest seconds for one compilation.")]


def screen(
    study: StudyArgument,
    target: TargetOption = None,
    topology: TopologyOption = None,
    recipes: Annotated[bool, typer.Option(help="Compile all published recipes too, not only the study's.")] = False,
    option: OptionOption = None,
    cache: CacheOption = True,
    limit_s: LimitOption = 900.0,
    as_json: JsonOption = False,
) -> None:
    """Says which settings change this program on that cluster, which are dead, and what does not fit."""
    from autotune import environment
    from autotune.catalog import load_catalog
    from autotune.predicted import facts_of
    from autotune.preflight import study_space
    from autotune.probe import probe
    from autotune.screen.study import domains

    with _engine(study, target, topology, option, cache=cache, limit_s=limit_s) as (spec, engine):
        report = probe(environment.python(), platform=spec.device.platform)
        space = study_space(spec, report, load_catalog(), facts_of(engine.reference(), engine.job.topology))
        found = engine.run(domains(space), _named_sets(spec, report, every=recipes))
    typer.echo(found.model_dump_json() if as_json else "\n".join(_screen_lines(found)))


def explain(
    study: StudyArgument,
    settings: Annotated[str, typer.Option("--set", metavar="FLAGS", help="Such as '--xla_...=true NCCL_PROTO=LL'.")],
    target: TargetOption = None,
    topology: TopologyOption = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Write a page with a time line.")] = None,
    option: OptionOption = None,
    cache: CacheOption = True,
    limit_s: LimitOption = 900.0,
) -> None:
    """Shows what one set changes in the program: collectives, schedule, memory, predicted times."""
    from autotune.screen.explain import as_page, as_text

    candidate = parse_set(settings)
    with _engine(study, target, topology, option, cache=cache, limit_s=limit_s) as (_, engine):
        sides = [_side(engine, s) for s in (parse_set(""), candidate)]
    limit = engine.limit_bytes(engine.baseline.merge(candidate))
    typer.echo(as_text(*sides, memory_limit_bytes=limit))
    if html is not None:
        place = engine.job.target.title if engine.job.target else "this CPU"
        title = f"{engine.job.entry} on {engine.job.topology} {place}"
        html.write_text(as_page(*sides, title=title, memory_limit_bytes=limit), encoding="utf-8")
        typer.echo(f"\npage: {html}")


def predict(
    study: StudyArgument,
    target: TargetOption = None,
    topology: TopologyOption = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FLAGS", help="A set beside the reference; may be repeated."),
    ] = None,
    option: OptionOption = None,
    calibrate: Annotated[
        Path | None, typer.Option(metavar="RUN", help="A run measured on GPUs, to scale the predictions by.")
    ] = None,
    cache: CacheOption = True,
    limit_s: LimitOption = 900.0,
    as_json: JsonOption = False,
) -> None:
    """Predicts step times from compiled programs, without a GPU; a prediction is never a measurement."""
    candidates = [parse_set(text) for text in ("", *(settings or ()))]
    held = _held(calibrate, cache=cache) if calibrate else None
    with _engine(study, target, topology, option, cache=cache, limit_s=limit_s) as (_, engine):
        rows = [_predicted_row(engine, candidate, held.calibration if held else None) for candidate in candidates]
    lines = [*_predicted_lines(rows), *(_held_lines(held) if held else ())]
    typer.echo(json.dumps(rows) if as_json else "\n".join(lines))


def _held(run: Path, *, cache: bool) -> Held:
    """A run's measurements, held against the model."""
    from autotune import environment
    from autotune.probe import default_cache_dir
    from autotune.screen.calibrate import hold
    from autotune.store import Store

    return hold(
        Store.open(run),
        cache_dir=default_cache_dir(environment.caller()) / "screen" if cache else None,
        progress=lambda what: typer.echo(what[:150], err=True),
    )


def _held_lines(held: Held) -> Iterator[str]:
    """What the predictions were calibrated by, and how far they may be trusted."""
    from autotune.units import format_share

    c, a = held.calibration, held.agreement
    yield (
        f"calibrated by {c.source}: kernels x {c.compute_scale:.3g}, exposed communication x {c.exposed_scale:.3g}, "
        f"gaps x {c.idle_scale:.3g}"
        + (f"; median error of programs left out {format_share(a.error)}" if a.error is not None else "")
    )
    if a.spearman is None or a.low is None or a.high is None or a.kendall is None:
        yield f"no rank correlation can be given: {a.count} programs that differ are too few"
    else:
        yield (
            f"rank correlation of predicted with measured over {a.count} programs: Spearman {a.spearman:.2f} "
            f"[{a.low:.2f}, {a.high:.2f}], Kendall {a.kendall:.2f}"
        )


def _predicted_row(engine: Screen, settings: FlagSet, calibration: Calibration | None) -> dict[str, Any]:
    """The prediction of one set as plain data, or why there is none."""
    from autotune.screen.predict import predict as predict_program

    target, topology = _of_gpu(engine)
    row: dict[str, Any] = {"settings": dict(settings), "target": target.name, "topology": str(topology)}
    if calibration is not None:
        row["calibrated_by"] = calibration.source
    result = engine.result(settings)
    if result.program is None:
        return {**row, "failure": result.failure.message if result.failure else ""}
    return {**row, **predict_program(result.program, target, topology, calibration).to_json()}


def _predicted_lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    from autotune.screen.explain import PREDICTED
    from autotune.units import format_change, format_seconds, format_share

    first = rows[0].get("step_s")
    for row in rows:
        name = " ".join(f"{n}={v}" for n, v in row["settings"].items()) or "reference"
        if "failure" in row:
            yield f"{name}: does not compile: {row['failure']}"
            continue
        against = f", {format_change(row['step_s'] / first)}" if first and row is not rows[0] else ""
        mfu = f", MFU {format_share(row['mfu'])}" if row["mfu"] is not None else ""
        yield (
            f"{name}: predicted step {format_seconds(row['step_s'])}{against} (kernels "
            f"{format_seconds(row['compute_s'])}, exposed communication {format_seconds(row['exposed_s'])}, "
            f"idle {format_seconds(row['idle_s'])}{mfu})"
        )
    yield PREDICTED


@targets_app.command("list")
def targets_list(as_json: JsonOption = False) -> None:
    """Lists the GPUs with their memory, rates and links."""
    from autotune.screen.targets import load_target, target_names
    from autotune.units import format_bytes, format_count

    found = [load_target(name) for name in target_names()]
    if as_json:
        typer.echo(json.dumps([_target_facts(t) for t in found]))
        return
    width = max(len(t.name) for t in found)
    for t in found:
        assert t.network is not None
        links = f"NVLink over {t.network.nvlink_domain} GPUs" if t.network.nvlink_links else "PCIe"
        typer.echo(
            f"{t.name:<{width}}  {t.title}: {format_bytes(t.memory_bytes)}, "
            f"{format_count(t.memory_bytes_per_s)}B/s, {format_count(t.flops_per_s['bf16'])}FLOP/s bf16, {links}"
        )


def parse_set(text: str) -> FlagSet:
    """A set as people type it: ``--xla_...=value`` tokens, and ``NAME=VALUE`` for variables and JAX options.

    Raises:
        SettingError: If a token has neither form.
    """
    from autotune.errors import SettingError
    from autotune.flags import FlagSet, quote_token, split_tokens

    found = FlagSet()
    for token in split_tokens(text):
        name, equals, value = token.partition("=")
        if token.startswith("--"):
            found = found.merge(FlagSet.parse(f"{name}={quote_token(value)}" if equals else name))
        elif equals:
            found = found.merge({name: value})
        else:
            raise SettingError(f"a set must hold --xla_name=value or NAME=VALUE but got {token!r}")
    return found


def format_set(settings: FlagSet) -> str:
    """A set as `parse_set` reads it."""
    from autotune.flags import quote_token

    return " ".join(f"{'--' if n.startswith('xla_') else ''}{n}={quote_token(v)}" for n, v in settings.items())


def _target_facts(target: Target) -> dict[str, Any]:
    import dataclasses

    return {n: v for n, v in dataclasses.asdict(target).items() if n != "config_text"}


@contextlib.contextmanager
def _engine(
    study: Path,
    target: str | None,
    topology: str | None,
    options: Sequence[str] | None,
    *,
    cache: bool,
    limit_s: float,
) -> Iterator[tuple[StudySpec, Screen]]:
    """The study as it is for that cluster, and what compiles it; progress goes to stderr."""
    from autotune import environment
    from autotune.probe import default_cache_dir
    from autotune.screen.study import open_screen
    from autotune.screen.targets import load_target, parse_topology
    from autotune.spec import load_study

    spec = load_study(study)
    merged = {**spec.workload.options, **_options(options or ())}
    with open_screen(
        spec.model_copy(update={"workload": spec.workload.model_copy(update={"options": merged})}),
        study_dir=study.resolve().parent,
        target=load_target(target) if target else None,
        topology=parse_topology(topology) if topology else None,
        cache_dir=default_cache_dir(environment.caller()) / "screen" if cache else None,
        limit_s=limit_s,
        progress=lambda what: typer.echo(what[:150], err=True),
    ) as opened:
        yield opened


def _options(pairs: Sequence[str]) -> dict[str, Any]:
    from autotune.errors import StudyFileError

    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise StudyFileError(f"--option must be NAME=VALUE but got {pair!r}")
        try:
            found[name] = json.loads(text)
        except json.JSONDecodeError:
            found[name] = text
    return found


def _named_sets(spec: StudySpec, report: Any, *, every: bool) -> dict[str, FlagSet]:
    """The study's own sets and recipes, or all recipes, as far as the build has them."""
    from autotune.catalog import load_catalog
    from autotune.migrate import for_build
    from autotune.recipes import find_recipe, load_recipes

    catalog = load_catalog()
    names = list(load_recipes()) if every else list(spec.search.recipes)
    found = {f"set {s.name}": s.settings for s in spec.search.first}
    found |= {f"recipe {n}": for_build(find_recipe(n).settings, report, catalog) for n in names}
    return {name: settings for name, settings in found.items() if settings}


def _side(engine: Screen, settings: FlagSet) -> Side:
    from autotune.errors import LaunchError
    from autotune.screen.explain import Side
    from autotune.screen.predict import predict as predict_program

    result = engine.result(settings)
    if result.program is None:
        assert result.failure is not None
        words = "\n  ".join([result.failure.message, *result.failure.last_lines[:6]])
        raise LaunchError(f"the set must compile to be explained but did not: {words}")
    target = engine.job.target
    known = target is not None and target.network is not None and bool(target.flops_per_s)
    prediction = predict_program(result.program, *_of_gpu(engine)) if known else None
    merged = engine.baseline.merge(settings)
    return Side(settings=str(merged), program=result.program, prediction=prediction)


def _of_gpu(engine: Screen) -> tuple[Target, Topology]:
    """Target and topology of a job for GPUs.

    Raises:
        StudyFileError: If the job is for the CPU, of which no time is predicted.
    """
    from autotune.errors import StudyFileError

    if engine.job.target is None:
        raise StudyFileError("times are predicted for GPUs only: add --target, such as --target h100-sxm")
    return engine.job.target, engine.job.topology


def _screen_lines(report: ScreenReport) -> list[str]:
    """The report in words."""
    from autotune.screen.classify import Effect
    from autotune.units import format_bytes, format_seconds, format_share

    versions = ", ".join(f"{n} {v}" for n, v in report.versions.items())
    lines = [f"{report.target}, {report.topology} (nodes x GPUs), {versions}"]
    peak, limit = report.reference.peak_bytes, report.limit_bytes
    if peak is not None:
        share = f", {format_share(peak / limit)} of {format_bytes(limit)}" if limit else ""
        verdict = "" if report.reference.fits is not False else ": DOES NOT FIT"
        lines.append(f"reference: peak {format_bytes(peak)} on each GPU{share}{verdict}")
    titles = {
        Effect.LIVE: "live: these change the program",
        Effect.DEAD: "dead here: no value changes the program, alone or among the live ones",
        Effect.MEASURE: "to be measured: read at run time or by the autotuner on the device",
        Effect.FAILS: "do not compile",
    }
    for effect, title in titles.items():
        members = report.of_effect(effect)
        if members:
            lines += ["", f"{title} ({len(members)})"]
            lines += [line for member in members for line in _setting_lines(member)]
    if report.sets:
        lines += ["", f"sets ({len(report.sets)})", *_set_lines(report)]
    lines += [
        "",
        f"{report.compiled_count} compiled in {format_seconds(report.duration_s)}, "
        f"{report.cached_count} taken from the cache",
    ]
    return lines


def _setting_lines(setting: SettingReport) -> list[str]:
    from autotune.screen.classify import Effect

    if setting.effect in (Effect.DEAD, Effect.MEASURE):
        return [f"  {setting.name}" + (f" ({setting.stage})" if setting.effect is Effect.MEASURE else "")]
    lines = [f"  {setting.name}" + (" (only together with others)" if setting.together else "")]
    for value in setting.values:
        if value.message:
            lines.append(f"    {value.value}: {value.message}")
        elif not value.is_live:
            lines.append(f"    {value.value}: same program")
        else:
            fit = " DOES NOT FIT;" if value.fits is False else ""
            lines.append(f"    {value.value}:{fit} {'; '.join(value.changes[:6])}")
    return lines


def _set_lines(report: ScreenReport) -> list[str]:
    lines = []
    for found in report.sets:
        if found.message:
            said = f"does not compile: {found.message}"
        elif found.same_as is not None:
            said = f"same program as {found.same_as}"
        else:
            said = "; ".join(found.changes[:6]) or "same program as reference"
        if found.fits is False:
            said = f"DOES NOT FIT; {said}"
        rest = f" (to be measured: {', '.join(found.to_measure)})" if found.to_measure else ""
        lines.append(f"  {found.name}: {said}{rest}")
    return lines
