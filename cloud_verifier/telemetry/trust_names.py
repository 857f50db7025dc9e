"""The metrics of certificates, keys and limits that are renewed while a verifier runs."""

from __future__ import annotations

from cloud_verifier.telemetry.metric import Metric

METRICS = (
    Metric(
        "forerun_certificate_expiry_seconds",
        "gauge",
        "When the TLS certificate in use ends, since 1970; infinite without one.",
        lambda s: s.trust.expires_at,
    ),
    Metric(
        "forerun_file_reloads",
        "counter",
        "Newer files that were taken: `certificate`, `token_keys`, `tenant_limits`.",
        lambda s: s.trust.reloads,
        "file",
    ),
    Metric(
        "forerun_failed_file_reloads",
        "counter",
        "Newer files that could not be used, so that the one before stays. The log has why.",
        lambda s: s.trust.failures,
        "file",
    ),
)
