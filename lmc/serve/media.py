"""Pictures in requests: data URLs, and files of hosts that the operator has named.

Fetching an address given by a request exposes this machine's network position (SSRF). So by default nothing is fetched;
if hosts are named, only from these, by the address's scheme, https or http, without following redirects, and no more
than a picture.
"""

from __future__ import annotations

from collections.abc import Collection
from http.client import HTTPException

from lmc.backend.api.network import directly
from lmc.errors import ParameterError
from lmc.images import MOST_BYTES, is_named, is_remote, read
from lmc.segments import Image
from lmc.serve.errors import bad

_SECONDS = 20.0  # for a file


def picture(url: str, detail: str, param: str, hosts: Collection[str]) -> Image:
    """Return the picture that a request gives by an address. Raises ApiError (400) for an invalid one, and for hosts
    that are not named."""
    if not is_remote(url) and url[:5].lower() != "data:":  # never a path of this machine
        raise bad(f"{param}: a picture is given by a data URL, data:image/…;base64,…", param)
    source: str | bytes = _fetched(url, param, hosts) if is_remote(url) else url
    try:
        return read(Image(source, None, detail))
    except ParameterError as error:
        raise bad(f"{param}: {error.message}", param) from None


def _fetched(url: str, param: str, hosts: Collection[str]) -> bytes:
    try:
        named = is_named(url, hosts)
    except ValueError:
        raise bad(f"{param}: this is not an address", param) from None
    if not hosts:
        raise bad(f"{param}: this server fetches nothing; send the picture as a data URL", param, "unsupported")
    if not named:
        raise bad(f"{param}: this server fetches pictures from {', '.join(sorted(hosts))} only; send the picture as a data URL", param, "unsupported")
    try:
        status, _, found = directly("GET", url, {"accept": "image/*"}, None, True, _SECONDS, MOST_BYTES + 1)
    except TimeoutError:
        raise bad(f"{param}: its host is too slow", param) from None
    except (OSError, HTTPException, ValueError):
        raise bad(f"{param}: its host does not answer", param) from None
    if status >= 300:
        raise bad(f"{param}: its host answers with {status}", param)
    if len(found) > MOST_BYTES:
        raise bad(f"{param}: the file is too large", param)
    return found
