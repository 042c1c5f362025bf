"""Signatures and annotations of what users write, whose names need not be defined yet, or only for type checkers.

From Python 3.14 on, annotations are evaluated when somebody reads them.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

if sys.version_info >= (3, 14):
    from annotationlib import Format, get_annotations

    def signature_of(fn: Callable[..., Any]) -> inspect.Signature:
        """Return the signature of a function; annotations with names that are not defined are or have ForwardRefs."""
        return inspect.signature(fn, annotation_format=Format.FORWARDREF)

    def annotations_of(of: Any) -> Mapping[str, Any]:
        """Return the own annotations of a class or a function; those with names that are not defined are or have ForwardRefs."""
        return get_annotations(of, format=Format.FORWARDREF)

else:

    def signature_of(fn: Callable[..., Any]) -> inspect.Signature:
        """Return the signature of a function; annotations of a module with `from __future__ import annotations` are texts."""
        return inspect.signature(fn)

    def annotations_of(of: Any) -> Mapping[str, Any]:
        """Return the own annotations of a class or a function; of a module with `from __future__ import annotations`, texts."""
        return getattr(of, "__annotations__", {})
