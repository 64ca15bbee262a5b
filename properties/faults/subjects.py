"""What of `kernel` is judged as a target: the kernel, and the references for its users."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax

from properties.judging.targets import Target, of_kernel

# The references have no blocks and nothing to debug.
_DEFAULTS = {"causal": False, "sm_scale": 1.0}


def mha_reference(package: Any) -> Target:
    """`mha_reference`, whose gradient is `mha_reference_bwd`."""

    def call(q: Any, k: Any, v: Any, ab: Any, segment_ids: Any, **options: Any) -> Any:
        passed = _named(options)
        return package.mha_reference(q, k, v, ab, segment_ids, **passed)

    return _of_reference(package, "mha_reference", call)


def mha_reference_no_custom_vjp(package: Any) -> Target:
    """`mha_reference_no_custom_vjp`. jax's derivative of it rounds as no bound here declares."""

    def call(q: Any, k: Any, v: Any, ab: Any, segment_ids: Any, **options: Any) -> Any:
        passed = _named(options)
        return package.mha_reference_no_custom_vjp(q, k, v, ab, segment_ids, **passed)

    target = _of_reference(package, "mha_reference_no_custom_vjp", call)
    return replace(target, features=target.features - {"gradients", "bias_gradient"})


def mha_reference_bwd(package: Any) -> Target:
    """`mha_reference_bwd` by itself, given what `mha_reference_no_custom_vjp` saves."""

    def call(q: Any, k: Any, v: Any, ab: Any, segment_ids: Any, **options: Any) -> Any:
        passed = _named(options)

        def forward(*primals: Any) -> tuple[Any, Any]:
            o, l, m = package.mha_reference_no_custom_vjp(
                *primals, segment_ids, save_residuals=True, **passed
            )
            return o, (primals, (o, l, m))

        def backward(saved: Any, do: Any) -> Any:
            primals, statistics = saved
            return package.mha_reference_bwd(*primals, segment_ids, *statistics, do, **passed)

        attend = jax.custom_vjp(lambda *primals: forward(*primals)[0])
        attend.defvjp(forward, backward)
        return attend(q, k, v, ab)

    return _of_reference(package, "mha_reference_bwd", call)


def _of_reference(package: Any, name: str, call: Callable[..., Any]) -> Target:
    def residuals(q: Any, k: Any, v: Any, ab: Any, segment_ids: Any, **options: Any) -> Any:
        passed = _named(options)
        return package.mha_reference_no_custom_vjp(
            q, k, v, ab, segment_ids, save_residuals=True, **passed
        )

    kernel = of_kernel(package, f"kernel:{name}")
    return replace(kernel, call=call, residuals=residuals, strict=False)


def _named(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a reference that a user would name: what has its default value is left out."""
    return {name: options[name] for name, value in _DEFAULTS.items() if options[name] != value}


SUBJECTS: dict[str, Callable[[Any], Target]] = {
    "flash_attention": of_kernel,
    "mha_reference": mha_reference,
    "mha_reference_bwd": mha_reference_bwd,
    "mha_reference_no_custom_vjp": mha_reference_no_custom_vjp,
}
"""By name, functions that make a target of an instance of the package."""
