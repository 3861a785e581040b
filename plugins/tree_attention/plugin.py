"""`TreeAttention` as a plugin of TensorRT, and of TensorRT for RTX: what the ONNX parser takes for the op's nodes.

The classes derive from the library's own, and which of the two libraries it is is known only when one is used; so
they are made by functions. Lists of fields, descriptions of tensors and addresses come from the library.
"""

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from spec_trt import names
from spec_trt.errors import BackendError
from spec_trt.plugins.tree_attention.support import Attributes, refuse_dtype, refuse_sizes
from spec_trt.plugins.tree_attention.tile_sizes import workspace_bytes

__all__ = ["PLUGIN_VERSION", "Refusals", "creator_class", "plugin_class", "read_attributes", "tree_attention_plugin"]

PLUGIN_VERSION = str(names.OP_VERSION)

_INPUTS = ("query", "key", "value", "past_key", "past_value", "past_lens", "tree_mask", "positions")
_QUERY, _KEY = 0, 1

# Of `support.Attributes`, as TensorRT's fields.
_FIELD_TYPES = {"scale": np.float32, "softcap": np.float32, "sliding_window": np.int32}


class Refusals:
    """What the plugins of one network or engine refused, or failed with.

    The library has one creator for all engines of a process, and tells nothing of why a plugin failed.

    Args:
        receivers: The creator's, of which the last one gets what is refused by the plugins that are made.
    """

    def __init__(self, receivers: "list[Refusals]") -> None:
        self._receivers = receivers
        self.found: list[Exception] = []

    def __call__(self) -> Exception | None:
        """Give the newest, once."""
        return self.found.pop() if self.found else None

    @contextmanager
    def receiving(self) -> Iterator[None]:
        """Belong to the plugins that are made meanwhile: parse or load here what they are of."""
        self._receivers.append(self)
        try:
            yield
        finally:
            self._receivers.remove(self)


@contextmanager
def tree_attention_plugin(trt: ModuleType) -> Iterator[Refusals]:
    """Make the plugin known to a TensorRT library: while parsing, building or loading, and as long as an engine runs.

    Contexts may overlap; the plugin is forgotten when the last one ends.

    Args:
        trt: The library, from `spec_trt.tensorrt.import_tensorrt`.

    Yields:
        What the plugins refuse that are made while it is `receiving`.

    Raises:
        BackendError: The library refuses the plugin; or such a plugin refused a node, in place of what the library
            made of that: its own messages name no reason.
    """
    registry = trt.get_plugin_registry()
    creator = next(filter(_is_ours, registry.all_creators), None) or _register(trt, registry)
    refusals = Refusals(creator.receivers)
    creator.holders += 1
    try:
        yield refusals
    except Exception as error:
        _raise_refusal(refusals, error)
        raise
    else:
        _raise_refusal(refusals, None)
    finally:
        creator.holders -= 1
        if not creator.holders:
            registry.deregister_creator(creator)


def _is_ours(creator: Any) -> bool:  # noqa: ANN401 - TensorRT has no types
    return creator.name == names.OP_NAME and creator.plugin_namespace == names.OP_DOMAIN and hasattr(creator, "holders")


def _register(trt: ModuleType, registry: Any) -> Any:  # noqa: ANN401 - as above
    creator = creator_class(trt)()
    if not registry.register_creator(creator, names.OP_DOMAIN):
        raise BackendError(
            f"{trt.__name__} has another plugin {names.OP_DOMAIN}::{names.OP_NAME} {PLUGIN_VERSION}: "
            "load no plugin library of that name"
        )
    return creator


def _raise_refusal(refusals: Refusals, cause: Exception | None) -> None:
    """Raise what was refused first, if anything."""
    if refusals.found:
        raise refusals.found[0] from cause


def read_attributes(fields: Iterable[Any]) -> Attributes:
    """Read the op's attributes from a plugin's fields: the ONNX node's, or those in an engine."""
    given = {field.name: np.asarray(field.data).ravel() for field in fields if field.name in _FIELD_TYPES}
    return Attributes(**{name: values[0].item() for name, values in given.items() if values.size})


def _fields(trt: ModuleType, attributes: Attributes) -> Any:  # noqa: ANN401 - as above
    types = {np.float32: trt.PluginFieldType.FLOAT32, np.int32: trt.PluginFieldType.INT32}
    return trt.PluginFieldCollection(
        [
            trt.PluginField(name, np.array([getattr(attributes, name)], dtype=kind), types[kind])
            for name, kind in _FIELD_TYPES.items()
        ]
    )


def creator_class(trt: ModuleType) -> Any:  # noqa: ANN401 - as above
    """Derive the plugin's creator from the library's."""
    plugin = plugin_class(trt)

    class TreeAttentionCreator(trt.IPluginCreatorV3One):  # type: ignore[misc, name-defined]
        """Makes a plugin from the attributes of a node, or from those stored in an engine.

        Attributes:
            receivers: The last of them gets what is refused by the plugins that are made now.
            holders: How many contexts keep it registered.
        """

        def __init__(self) -> None:
            trt.IPluginCreatorV3One.__init__(self)
            self.name = names.OP_NAME
            self.plugin_version = PLUGIN_VERSION
            self.plugin_namespace = names.OP_DOMAIN
            self.field_names = _fields(trt, Attributes(scale=0.0))
            self.receivers: list[Refusals] = []
            self.holders = 0

        def create_plugin(self, name: str, fields: Any, phase: Any) -> Any:  # noqa: ANN401, ARG002 - as above
            return plugin(read_attributes(fields), self.receivers[-1].found if self.receivers else [])

    return TreeAttentionCreator


def plugin_class(trt: ModuleType) -> Any:  # noqa: ANN401 - as above
    """Derive the plugin from the library's interfaces: core, build and run time in one."""
    dtype_names = {trt.float16: "fp16", trt.bfloat16: "bf16", trt.float32: "fp32"}
    all_names = dtype_names | {trt.int64: "int64", trt.bool: "bool"}

    class TreeAttentionPlugin(
        trt.IPluginV3,  # type: ignore[misc, name-defined]
        trt.IPluginV3OneCore,  # type: ignore[misc, name-defined]
        trt.IPluginV3OneBuild,  # type: ignore[misc, name-defined]
        trt.IPluginV3OneRuntime,  # type: ignore[misc, name-defined]
    ):
        """One node's attention."""

        def __init__(self, attributes: Attributes, refusals: list[Exception]) -> None:
            trt.IPluginV3.__init__(self)
            trt.IPluginV3OneCore.__init__(self)
            trt.IPluginV3OneBuild.__init__(self)
            trt.IPluginV3OneRuntime.__init__(self)
            self.plugin_name = names.OP_NAME
            self.plugin_version = PLUGIN_VERSION
            self.plugin_namespace = names.OP_DOMAIN
            self.num_outputs = 1
            self.attributes = attributes
            self.refusals = refusals
            _keep_to_the_end(self)

        # Core.

        def get_capability_interface(self, type: Any) -> Any:  # noqa: A002, ANN401, ARG002 - the library's signature
            return self

        def clone(self) -> Any:  # noqa: ANN401 - as above
            copy = TreeAttentionPlugin(self.attributes, self.refusals)
            copy.__dict__.update(self.__dict__)
            return copy

        # Build.

        def get_output_data_types(self, input_types: Sequence[Any]) -> list[Any]:
            with _noted(self.refusals):
                _refuse_inputs(len(input_types), self.attributes)
                refuse_dtype(dtype_names.get(input_types[_QUERY], str(input_types[_QUERY])))
            return [input_types[_QUERY]]

        def get_output_shapes(self, inputs: Sequence[Any], shape_inputs: Any, expr_builder: Any) -> list[Any]:  # noqa: ANN401, ARG002 - as above
            sizes = (inputs[_QUERY][1], inputs[_KEY][1], inputs[_QUERY][3])
            if all(size.is_constant() for size in sizes):
                heads, kv_heads, head_dim = (size.get_constant_value() for size in sizes)
                with _noted(self.refusals):
                    refuse_sizes(heads=heads, kv_heads=kv_heads, head_dim=head_dim)
            return [trt.DimsExprs(inputs[_QUERY])]

        def supports_format_combination(self, pos: int, in_out: Sequence[Any], num_inputs: int) -> bool:
            desc = in_out[pos].desc
            expected = {"past_lens": trt.int64, "tree_mask": trt.bool, "positions": trt.int64}
            name = _INPUTS[pos] if pos < num_inputs else "out"
            if name == "query":
                typed = desc.type in dtype_names
            else:
                typed = desc.type == expected.get(name, in_out[_QUERY].desc.type)
            return bool(typed and desc.format == trt.TensorFormat.LINEAR and not self.refusals)

        def configure_plugin(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:  # noqa: ARG002 - as above
            query, key = inputs[_QUERY].desc.dims, inputs[_KEY].desc.dims
            with _noted(self.refusals):
                refuse_sizes(heads=query[1], kv_heads=key[1], head_dim=query[3])

        def get_workspace_size(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> int:  # noqa: ARG002 - as above
            batch, heads, nodes, head_dim = inputs[_QUERY].max
            kv_heads = inputs[_KEY].max[1]
            return workspace_bytes(batch=batch, heads=heads, kv_heads=kv_heads, nodes=nodes, head_dim=head_dim)

        def get_valid_tactics(self) -> list[int]:
            return []

        # Run time.

        def get_fields_to_serialize(self) -> Any:  # noqa: ANN401 - as above
            return _fields(trt, self.attributes)

        def set_tactic(self, tactic: int) -> None:
            """There are no tactics to choose from: sizes follow from the GPU and the shapes."""

        def on_shape_change(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
            """Nothing is prepared for a shape: the kernels of a new one are compiled when it first runs."""

        def attach_to_context(self, resource_context: Any) -> Any:  # noqa: ANN401, ARG002 - as above
            return self.clone()

        def enqueue(
            self,
            input_desc: Sequence[Any],
            output_desc: Sequence[Any],  # noqa: ARG002 - as above
            inputs: Sequence[int],
            outputs: Sequence[int],
            workspace: int,
            stream: int,
        ) -> None:
            from spec_trt.plugins.tree_attention.enqueue import enqueue

            tensors = {
                name: (address, all_names[desc.type], tuple(desc.dims))
                for name, address, desc in zip(_INPUTS, inputs, input_desc, strict=False)
            }
            try:
                enqueue(tensors, outputs[0], workspace, stream, self.attributes)
            except Exception as failure:  # Triton's and CUDA's are of any type
                self.refusals.append(failure)
                raise

    return TreeAttentionPlugin


def _keep_to_the_end(plugin: Any) -> None:  # noqa: ANN401 - as above
    """Take a reference that is never given back: the library frees a plugin twice when its own is the last.

    Its bindings drop that reference while they destroy the plugin, on which Python frees it too. What is kept is a few
    bytes for each of a network's plugins.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(plugin))


@contextmanager
def _noted(refusals: list[Exception]) -> Iterator[None]:
    """Keep a refusal for `tree_attention_plugin` to raise; the library goes on until it asks for types, and gets none.

    An exception would only reach the library, which writes its traceback to stderr and gives a reason of its own.
    """
    try:
        yield
    except BackendError as refusal:
        refusals.append(refusal)


def _refuse_inputs(count: int, attributes: Attributes) -> None:
    """Refuse a node whose inputs and attributes do not belong together."""
    expected = len(_INPUTS) if attributes.sliding_window else len(_INPUTS) - 1
    if count != expected:
        raise BackendError(
            f"the plugin {names.OP_NAME} takes the input `positions` with the attribute sliding_window, and only then: "
            f"found {count} inputs and sliding_window {attributes.sliding_window}: export the model again"
        )
