"""Reads without a limit that are right: this program, its user or its host wrote what is read.

(path, function) -> why. What comes from a peer, a model's folder or another user is never here.
"""

OWN = "this program wrote it, into a folder of its owner's alone"
NAMED = "the person who runs the command names it, and waits for it"
CHILD = "lines of a process that this program started; asyncio's own limit of 64 KiB a line holds"
KERNEL = "the kernel writes it"
GUARDED = "`Guarded` stands before every route, counts a body's bytes and ends it at api.max_body_bytes"
PACKAGED = "it is part of this package"

ALLOWED = {
    ("edge_client/api/app.py", "_body"): GUARDED,
    ("edge_client/api/demo_link.py", "demo_routes.post"): GUARDED,
    ("edge_client/api/page.py", "page_routes"): PACKAGED,
    ("edge_client/config/toml_file.py", "read_toml"): "its size is looked at first",
    ("edge_client/daemon/journal.py", "_read"): OWN,
    ("edge_client/daemon_file.py", "_start_on_linux"): KERNEL,
    ("edge_client/daemon_file.py", "read_any"): OWN,
    ("edge_client/fetch.py", "_Part._known_identity"): OWN,
    ("edge_client/fleet_link.py", "_password"): "a secret's file that the configuration names",
    ("edge_client/model_store.py", "read_manifest"): OWN,
    ("edge_client/prior_file.py", "read_priors"): NAMED,
    ("forerun/bench/clients.py", "_read"): CHILD,
    ("forerun/bench/host.py", "Host.run"): CHILD,
    ("forerun/bench/meter.py", "memory_bytes"): KERNEL,
    ("forerun/bench/reporting.py", "_processor"): KERNEL,
    ("forerun/bench/schemes.py", "ask_rivals"): CHILD,
    ("forerun/bench/stage.py", "Verifier.take"): CHILD,
    ("forerun/bench/stage.py", "_to_the_end"): CHILD,
    ("forerun/chat/messages.py", "_plain_line"): "a person types it, or names the file behind it",
    ("forerun/doctor/broker.py", "_settings"): "a secret's file that the configuration names",
    ("forerun/doctor/child.py", "main"): "doctor itself writes it, one line of settings",
    ("forerun/fleet_options.py", "_password"): NAMED,
    ("forerun/logs_command.py", "followed"): "the daemon's own log, line by line",
    ("forerun/models_table.py", "write_tables"): PACKAGED,
    ("forerun/options.py", "read_prompt"): NAMED,
    ("forerun/prompts.py", "bundled"): PACKAGED,
    ("forerun/record.py", "_prompts"): NAMED,
    ("forerun/rig.py", "Child.read"): CHILD,
    ("forerun/rig.py", "Rig.events"): CHILD,
    ("forerun/service_command.py", "_check_ours"): "a unit file of the service manager's folder",
    ("forerun/verify_tls.py", "check_tls"): "`ServerTls.read`, which reads each file with a limit",
    ("link/cli.py", "_read_script"): NAMED,
    ("simulator/documents.py", "read_text"): NAMED,
    ("simulator/sweep.py", "_has_finished_cells"): "a sweep's own results",
    ("simulator/sweep.py", "run_sweep"): "a sweep's own results",
    ("simulator/tables.py", "Table.keep"): "a sweep's own results",
    ("simulator/tables.py", "Table.load"): "a sweep's own results",
    ("simulator/tables.py", "read_rows"): NAMED,
}
