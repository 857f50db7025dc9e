"""The metrics of certificates, keys and limits that are renewed while a verifier runs, and of tenants'
quotas."""

from __future__ import annotations

from cloud_verifier.core.rationing import LIMITS
from cloud_verifier.telemetry.metric import Metric
from cloud_verifier.telemetry.trust import FILES

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
        "Newer files that were taken: `certificate`, `token_keys`, `tenant_limits`, `denied`.",
        lambda s: {**dict.fromkeys(FILES, 0.0), **s.trust.reloads},
        "file",
    ),
    Metric(
        "forerun_failed_file_reloads",
        "counter",
        "Newer files that could not be used, so that the one before stays. The log has why.",
        lambda s: {**dict.fromkeys(FILES, 0.0), **s.trust.failures},
        "file",
    ),
    Metric(
        "forerun_quota_refusals",
        "counter",
        "Sessions refused for their tenant's quota, by its limit; `forerun_refusals_total` has them, too.",
        lambda s: {**dict.fromkeys(LIMITS, 0.0), **s.quota_refusals},
        "limit",
    ),
    Metric(
        "forerun_quota_held",
        "counter",
        "Times that a session was ready for a step and stayed out, its tenant having had its rate.",
        lambda s: s.num_held,
    ),
)
