"""A profile as text: which people can read, and which XLA tries first."""

from __future__ import annotations

from functools import cache
from typing import Any


def profile_text(profile: bytes) -> str:
    """A ``ProfiledInstructionsProto`` as text.

    Raises:
        ValueError: If it is none.
    """
    from google.protobuf import text_format
    from google.protobuf.message import DecodeError

    try:
        return str(text_format.MessageToString(_message_class().FromString(profile)))
    except DecodeError as error:
        raise ValueError(f"a profile must be a ProfiledInstructionsProto but: {error}") from error


@cache
def _message_class() -> Any:
    """The message, of which jaxlib has no Python class (tsl/profiler/protobuf/profiled_instructions.proto)."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    package = "autotune.profile"
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")

    def add(name: str, fields: dict[str, int], label: int) -> None:
        message = file.message_type.add(name=name)
        for number, (key, kind) in enumerate(fields.items(), 1):
            of = f".{package}.{key.title()}" if kind == field.TYPE_MESSAGE else None
            message.field.add(name=key, number=number, type=kind, label=label, type_name=of)

    one, many = field.LABEL_OPTIONAL, field.LABEL_REPEATED
    add("Costs", {"name": field.TYPE_STRING, "cost_us": field.TYPE_DOUBLE}, one)
    latency = {"source": field.TYPE_STRING, "target": field.TYPE_STRING, "latency_us": field.TYPE_DOUBLE}
    add("Latencies", latency, one)
    add("Profile", {"costs": field.TYPE_MESSAGE, "latencies": field.TYPE_MESSAGE}, many)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.Profile"))
