"""A CA of a test's own, and certificates that it vouches for, made by the ``openssl`` command."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.services.errors import ServiceMissing

_LEAF = "basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\nsubjectKeyIdentifier=hash\n"
_CA = "basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign,cRLSign\nsubjectKeyIdentifier=hash\n"


@dataclass(frozen=True, slots=True)
class Certificate:
    """A PEM file, and that of its key (PKCS #8, without a password)."""

    file: str
    key: str


def make_ca(folder: Path, name: str = "ca") -> Certificate:
    """A CA that nobody else trusts."""
    ca = Certificate(str(folder / f"{name}.pem"), str(folder / f"{name}.key"))
    extensions = [part for line in _CA.splitlines() for part in ("-addext", line)]
    config = folder / f"{name}.cnf"
    config.write_text("[req]\ndistinguished_name=dn\n[dn]\n")
    _openssl("req", "-x509", "-config", str(config), *_new_key(ca), "-days", "2", "-subj", f"/CN={name}", *extensions)
    return ca


def make_certificate(folder: Path, ca: Certificate, name: str, alternatives: str = "IP:127.0.0.1") -> Certificate:
    """A certificate of ``ca`` for these names and addresses."""
    made = Certificate(str(folder / f"{name}.pem"), str(folder / f"{name}.key"))
    config, request = folder / f"{name}.cnf", folder / f"{name}.csr"
    config.write_text(
        f"[req]\ndistinguished_name=dn\n[dn]\n[leaf]\n{_LEAF}authorityKeyIdentifier=keyid\n"
        f"subjectAltName={alternatives}\n"
    )
    asked = Certificate(str(request), made.key)
    _openssl("req", "-config", str(config), *_new_key(asked), "-subj", f"/CN={name}")
    signed = ("-CA", ca.file, "-CAkey", ca.key, "-CAcreateserial", "-days", "2", "-extfile", str(config))
    _openssl("x509", "-req", "-in", str(request), *signed, "-extensions", "leaf", "-out", made.file)
    return made


def _new_key(made: Certificate) -> list[str]:
    curve = "ec_paramgen_curve:P-256"
    return ["-newkey", "ec", "-pkeyopt", curve, "-nodes", "-keyout", made.key, "-out", made.file]


def _openssl(*arguments: str) -> None:
    program = shutil.which("openssl")
    if program is None:
        raise ServiceMissing("openssl is not installed: install it (Debian: apt-get install openssl)")
    subprocess.run([program, *arguments], check=True, capture_output=True)
