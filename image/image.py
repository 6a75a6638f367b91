"""Makes the image of foretoken, with or without a container engine.

    python3 image/image.py --executable target/release/foretoken --output target/image/foretoken.tar
    python3 image/image.py --executable target/release/foretoken --root FOLDER     # what image/Dockerfile does
    python3 image/image.py --model models/target --name story-target:dev --output target/image/story-target.tar

The image holds the executable without symbols, the few libraries of the C runtime that it is linked to, certificates
of authorities, and nothing else: no shell, no package manager. The C runtime stays dynamic, because drivers of
accelerators are libraries that are loaded at run time. An image of a model has its files at the root, for pods that
mount it as a volume.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import oci

ENTRYPOINT = ["/usr/bin/foretoken"]
# Nobody's home; what is written there is a pod's own volume.
ENVIRONMENT = {"HOME": "/tmp"}
USER = "65532:65532"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
SOURCE = "https://github.com/foretoken/foretoken"


class ImageError(Exception):
    """The image cannot be made."""


def libraries(executable: Path) -> list[Path]:
    """The libraries that an executable is linked to, the loader included."""
    listed = _run(["ldd", str(executable)])
    if "not found" in listed:
        raise ImageError(f"{executable} needs libraries that are not here:\n{listed}")
    return [Path(path) for path in re.findall(r"(/\S+) \(0x", listed)]


def lay_out_runtime(root: Path, executable: Path, certificates: Path) -> None:
    """Everything but the executable: it changes seldom, so that it is a layer of its own."""
    for library in libraries(executable):
        _copy(library, root)
    if not certificates.exists():
        raise ImageError(f"{certificates} is not here: install ca-certificates, or name another file with --certificates")
    (root / "etc" / "ssl" / "certs").mkdir(parents=True)
    shutil.copy(certificates, root / CERTIFICATES.relative_to("/"))
    (root / "etc" / "passwd").write_text("foretoken:x:65532:65532::/tmp:/nonexistent\n")
    (root / "etc" / "nsswitch.conf").write_text("hosts: files dns\n")
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)


def lay_out_executable(root: Path, executable: Path) -> None:
    """The executable, without symbols and lines of source."""
    target = root / ENTRYPOINT[0].lstrip("/")
    target.parent.mkdir(parents=True)
    _run(["strip", "-o", str(target), str(executable)])
    target.chmod(0o755)


def foretoken(name: str, executable: Path, certificates: Path, output: Path) -> None:
    """Writes the image of foretoken as an archive."""
    layers = []
    for lay_out in (lambda root: lay_out_runtime(root, executable, certificates), lambda root: lay_out_executable(root, executable)):
        with tempfile.TemporaryDirectory() as root:
            lay_out(Path(root))
            layers.append(oci.layer(Path(root)))
    image = oci.Image(name, ENTRYPOINT, environment=ENVIRONMENT, user=USER, labels={"org.opencontainers.image.source": SOURCE})
    _write(output, image, layers)


def model(name: str, folder: Path, output: Path) -> None:
    """Writes an image that is a model's folder."""
    if not (folder / "config.json").exists():
        raise ImageError(f"{folder} is not a model: it has no config.json")
    _write(output, oci.Image(name), [oci.layer(folder)])


def _write(output: Path, image: oci.Image, layers: list[bytes]) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    compressed = oci.write(output, image, layers)
    unpacked = sum(len(layer) for layer in layers)
    print(f"{output}: {image.name}, {unpacked / 1e6:.1f} MB, {compressed / 1e6:.1f} MB compressed")


def _copy(path: Path, root: Path) -> None:
    target = root / path.relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, target)
    target.chmod(0o755)


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, text=True, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise ImageError(f"there is no {command[0]} here, which makes the image small: install binutils and libc-bin") from error
    if done.returncode != 0:
        raise ImageError(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def main() -> int:
    """Does what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--executable", type=Path, help="the foretoken to make an image of")
    what.add_argument("--model", type=Path, help="the model's folder to make an image of")
    parser.add_argument("--name", default="foretoken:dev", help="the image's name (default: %(default)s)")
    parser.add_argument("--certificates", type=Path, default=CERTIFICATES, help="authorities to trust (default: %(default)s)")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--output", type=Path, help="the OCI archive to write")
    where.add_argument("--root", type=Path, help="only lay out the image's files in this new folder")
    wanted = parser.parse_args()
    try:
        if wanted.model and wanted.output:
            model(wanted.name, wanted.model, wanted.output)
        elif wanted.model:
            parser.error("--root is for --executable; a model's folder is what its image holds")
        elif wanted.root:
            wanted.root.mkdir(parents=True)
            lay_out_runtime(wanted.root, wanted.executable, wanted.certificates)
            lay_out_executable(wanted.root, wanted.executable)
        else:
            foretoken(wanted.name, wanted.executable, wanted.certificates, wanted.output)
    except (ImageError, OSError) as error:
        print(f"image: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
