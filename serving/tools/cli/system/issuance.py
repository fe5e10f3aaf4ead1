"""The certificates of public hosts that ``serving up --acme`` issues, as ``status`` and ``doctor`` show them."""

from serving.core.model.objects import Object, condition_of, is_true, nested


def host_of(certificate: Object) -> str:
    """The host of a Certificate."""
    return str((nested(certificate, "spec", "dnsNames") or ("?",))[-1])


def problem_of(certificate: Object) -> str:
    """Why the last order of a certificate failed, or "not issued yet"; "" without a problem."""
    message = str(
        condition_of(certificate, "Issuing").get("message") or condition_of(certificate, "Ready").get("message") or ""
    )
    return message or ("" if is_true(certificate, "Ready") else "not issued yet")
