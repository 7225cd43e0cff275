"""Certificates for tests: an authority, and what it signs for a server on loopback and a client."""

import datetime
import ipaddress
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_DAY = datetime.timedelta(days=1)


class Certificate(NamedTuple):
    """The files of a certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates for as long as a test runs; `ca` is its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority")])
        signed = self._sign(self._name, self._key.public_key(), authority=True)
        self.ca = directory / "ca.pem"
        self.ca.write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def certificate(self, name: str, *, addresses: tuple[str, ...] = ("127.0.0.1",)) -> Certificate:
        """Return a certificate for a name, and for addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        alternatives = x509.SubjectAlternativeName(
            [
                x509.DNSName(name),
                *(x509.IPAddress(ipaddress.ip_address(address)) for address in addresses),
            ]
        )
        signed = self._sign(subject, key.public_key(), alternatives=alternatives)
        files = Certificate(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        files.cert.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        files.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return files

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        *,
        authority: bool = False,
        alternatives: x509.SubjectAlternativeName | None = None,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + _DAY)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        if alternatives is not None:
            builder = builder.add_extension(alternatives, critical=False)
        return builder.sign(self._key, hashes.SHA256())
