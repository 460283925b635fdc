"""Write a software bill of materials, CycloneDX 1.5 as JSON, from requirements.lock: `make sbom`.

Usage: python tools/sbom.py [OUT]

Versions, file hashes and dependencies are those of the lock; a licence is added where the package is installed in the
same version. The same lock gives the same components.
"""

from __future__ import annotations

import json
import re
import sys
import uuid
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "requirements.lock"
PIN = re.compile(r"(?m)^([\w.-]+)(?:\[[^\]]*\])?==([^\s;\\]+)((?:.*\\\n)*.*\n(?: +#.*\n)*)")


def bill(lock: str, version: str) -> dict[str, Any]:
    """The bill of materials of a lock file, for this version of gainroute."""
    own = f"pkg:pypi/gainroute@{version}"
    components: list[dict[str, Any]] = []
    needs: dict[str, set[str]] = {own: set()}
    refs, via = {"gainroute": own}, {}
    for name, pinned, rest in PIN.findall(lock):
        plain = re.sub(r"[-_.]+", "-", name).lower()
        refs[plain] = ref = f"pkg:pypi/{plain}@{pinned}"
        via[ref] = re.findall(r"(?m)^ +#(?: via)? +(?:-r )?([\w.-]+)", rest)
        needs[ref] = set()
        hashes = [{"alg": "SHA-256", "content": digest} for digest in re.findall(r"sha256:([0-9a-f]{64})", rest)]
        files = {"type": "distribution", "url": f"https://pypi.org/simple/{plain}/", "hashes": hashes}
        found = {"type": "library", "bom-ref": ref, "name": plain, "version": pinned, "purl": ref}
        components.append({**found, **_licence(plain, pinned), "externalReferences": [files]})
    for ref, users in via.items():
        for user in users:
            if user.lower() in refs:
                needs[refs[user.lower()]].add(ref)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, version + lock)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library", "bom-ref": own, "name": "gainroute", "version": version, "purl": own,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            },
        },
        "components": components,
        "dependencies": [{"ref": ref, "dependsOn": sorted(used)} for ref, used in needs.items()],
    }  # fmt: skip


def _licence(name: str, version: str) -> dict[str, Any]:
    try:
        held = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return {}
    if held["Version"] != version:
        return {}
    if held.get("License-Expression"):
        return {"licenses": [{"expression": held["License-Expression"]}]}
    classified = [c.rpartition(" :: ")[2] for c in held.get_all("Classifier") or [] if c.startswith("License ::")]
    short = [text for text in [held.get("License", "")] if text and len(text) < 100 and "\n" not in text]
    return {"licenses": [{"license": {"name": text}} for text in classified or short]} if classified or short else {}


if __name__ == "__main__":
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "out/sbom.json")
    number = re.search(r'__version__ = "([^"]+)"', (ROOT / "src/gainroute/_version.py").read_text(encoding="utf-8"))
    made = bill(LOCK.read_text(encoding="utf-8"), number[1] if number else "0")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
    named = sum("licenses" in component for component in made["components"])
    print(f"{out}: {len(made['components'])} components, {named} with a licence")
