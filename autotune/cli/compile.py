"""The commands that compile without measuring: `screen`, `explain`, `predict`, `targets`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from autotune.compiler import Calibration, PredictionCheck, Screener, Side, Target, Topology
    from autotune.model import FlagSet, StudySpec
    from autotune.settings import KnownSettings

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
    from autotune.compiler import domains
    from autotune.machine import driver_python
    from autotune.settings import KnownSettings, build_space, probe_build
    from autotune.study import facts_of

    with _engine(study, target, topology, option, cache=cache, limit_s=limit_s) as (spec, engine):
        known = KnownSettings(probe_build(driver_python(), platform=spec.device.platform))
        space = build_space(spec, known, facts_of(engine.reference(), engine.job.topology))
        found = engine.run(domains(space), _named_sets(spec, known, every=recipes))
    from autotune.results import screen_lines

    typer.echo(found.model_dump_json() if as_json else "\n".join(screen_lines(found)))


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
    from autotune.compiler import as_page, as_text
    from autotune.model import parse_set

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
    from autotune.model import parse_set
    from autotune.results import held_lines, predicted_lines

    candidates = [parse_set(text) for text in ("", *(settings or ()))]
    held = _held(calibrate, cache=cache) if calibrate else None
    with _engine(study, target, topology, option, cache=cache, limit_s=limit_s) as (_, engine):
        rows = [_predicted_row(engine, candidate, held.calibration if held else None) for candidate in candidates]
    lines = [*predicted_lines(rows), *(held_lines(held) if held else ())]
    typer.echo(json.dumps(rows) if as_json else "\n".join(lines))


def _held(run: Path, *, cache: bool) -> PredictionCheck:
    """A run's measurements, held against the model."""
    from autotune.compiler import check_predictions
    from autotune.machine import caller_environment, default_cache_dir
    from autotune.rundir import Store

    return check_predictions(
        Store.open(run),
        cache_dir=default_cache_dir(caller_environment()) / "screen" if cache else None,
        progress=lambda what: typer.echo(what[:150], err=True),
    )


def _predicted_row(engine: Screener, settings: FlagSet, calibration: Calibration | None) -> dict[str, Any]:
    """The prediction of one set as plain data, or why there is none."""
    from autotune.compiler import predict_step as predict_program

    target, topology = _of_gpu(engine)
    row: dict[str, Any] = {"settings": dict(settings), "target": target.name, "topology": str(topology)}
    if calibration is not None:
        row["calibrated_by"] = calibration.source
    result = engine.result(settings)
    if result.program is None:
        return {**row, "failure": result.failure.message if result.failure else ""}
    return {**row, **predict_program(result.program, target, topology, calibration).to_json()}


@targets_app.command("list")
def targets_list(as_json: JsonOption = False) -> None:
    """Lists the GPUs with their memory, rates and links."""
    from autotune.compiler import load_target, target_names
    from autotune.model import format_bytes, format_count

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
) -> Iterator[tuple[StudySpec, Screener]]:
    """The study as it is for that cluster, and what compiles it; progress goes to stderr."""
    from autotune.compiler import load_target, open_screener, parse_topology
    from autotune.machine import caller_environment, default_cache_dir
    from autotune.model import load_study

    spec = load_study(study)
    merged = {**spec.workload.options, **_options(options or ())}
    with open_screener(
        spec.model_copy(update={"workload": spec.workload.model_copy(update={"options": merged})}),
        study_dir=study.resolve().parent,
        target=load_target(target) if target else None,
        topology=parse_topology(topology) if topology else None,
        cache_dir=default_cache_dir(caller_environment()) / "screen" if cache else None,
        limit_s=limit_s,
        progress=lambda what: typer.echo(what[:150], err=True),
    ) as opened:
        yield opened


def _options(pairs: Sequence[str]) -> dict[str, Any]:
    from autotune.model import StudyFileError

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


def _named_sets(spec: StudySpec, known: KnownSettings, *, every: bool) -> dict[str, FlagSet]:
    """The study's own sets and recipes, or all recipes, as far as the build has them."""
    from autotune.settings import find_recipe, for_build, load_recipes

    names = list(load_recipes()) if every else list(spec.search.recipes)
    found = {f"set {s.name}": s.settings for s in spec.search.first}
    found |= {f"recipe {n}": for_build(find_recipe(n).settings, known) for n in names}
    return {name: settings for name, settings in found.items() if settings}


def _side(engine: Screener, settings: FlagSet) -> Side:
    from autotune.compiler import Side
    from autotune.compiler import predict_step as predict_program
    from autotune.model import LaunchError

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


def _of_gpu(engine: Screener) -> tuple[Target, Topology]:
    """Target and topology of a job for GPUs.

    Raises:
        StudyFileError: If the job is for the CPU, of which no time is predicted.
    """
    from autotune.model import StudyFileError

    if engine.job.target is None:
        raise StudyFileError("times are predicted for GPUs only: add --target, such as --target h100-sxm")
    return engine.job.target, engine.job.topology
