"""Writes container images as OCI archives, without a container engine.

An archive is a tar file that holds an image layout (https://github.com/opencontainers/image-spec): a small index that
names a manifest, which names a configuration and the layers. containerd, Docker, Podman and skopeo read it. The same
files give the same bytes: no clock, owner or order of the machine goes into it.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import stat
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass
class Image:
    """What an image is, but for its layers."""

    name: str
    entrypoint: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    # A number, so that `runAsNonRoot` can be checked without the image's /etc/passwd.
    user: str = "65532:65532"
    labels: dict[str, str] = field(default_factory=dict)


def reference(name: str) -> str:
    """A name as Kubernetes and Docker understand it: `foretoken:dev` is docker.io's."""
    domain, slash, rest = name.partition("/")
    if not slash:
        return f"docker.io/library/{name}"
    is_host = "." in domain or ":" in domain or domain == "localhost"
    return name if is_host else f"docker.io/{domain}/{rest}"


def layer(root: Path) -> bytes:
    """A folder as an uncompressed tar archive: sorted, owned by root, without times."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(root.rglob("*")):
            entry = tarfile.TarInfo(str(path.relative_to(root)))
            mode = path.lstat().st_mode
            # What may be read here may be read there; writing is the owner's.
            entry.mode = 0o755 if path.is_dir() or mode & stat.S_IXUSR else 0o644
            if mode & stat.S_ISVTX:
                entry.mode = 0o1777
            if path.is_symlink():
                entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(path)
                archive.addfile(entry)
            elif path.is_dir():
                entry.type = tarfile.DIRTYPE
                archive.addfile(entry)
            else:
                entry.size = path.stat().st_size
                with path.open("rb") as content:
                    archive.addfile(entry, content)
    return buffer.getvalue()


def write(path: Path, image: Image, layers: list[bytes]) -> int:
    """Writes an archive; answers the bytes of its compressed layers, which is what a registry would store."""
    blobs: dict[str, bytes] = {}

    def add(content: bytes, media_type: str) -> dict:
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    platform = {"architecture": ARCHITECTURES[os.uname().machine], "os": "linux"}
    configuration = platform | {
        "config": {
            "User": image.user,
            "Entrypoint": image.entrypoint,
            "Cmd": image.arguments,
            "Env": [f"{key}={value}" for key, value in image.environment.items()],
            "Labels": image.labels,
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(content).hexdigest()}" for content in layers]},
    }
    compressed = [gzip.compress(content, compresslevel=6, mtime=0) for content in layers]
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": add(_json(configuration), "application/vnd.oci.image.config.v1+json"),
        "layers": [add(content, "application/vnd.oci.image.layer.v1.tar+gzip") for content in compressed],
    }
    entry = add(_json(manifest), "application/vnd.oci.image.manifest.v1+json")
    entry["platform"] = platform
    entry["annotations"] = {
        # containerd takes the whole name from the first, others from the second.
        "io.containerd.image.name": reference(image.name),
        "org.opencontainers.image.ref.name": image.name,
    }
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [entry]}
    files = {"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": _json(index)}
    files |= {f"blobs/sha256/{digest}": content for digest, content in sorted(blobs.items())}
    partial = path.with_name(path.name + ".partial")
    with tarfile.open(partial, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o644
            archive.addfile(member, io.BytesIO(content))
    partial.replace(path)
    return sum(len(content) for content in compressed)


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
