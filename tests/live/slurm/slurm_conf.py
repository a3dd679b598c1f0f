"""The slurm.conf of a cluster that lives on one machine's loopback, as any user's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def hooks_we_ship() -> dict[str, str]:
    """The settings of slurm.conf that packaging/slurm/README.md asks for."""
    page = Path(__file__).parents[3] / "packaging/slurm/README.md"
    lines = page.read_text(encoding="utf-8").splitlines()
    words = [line.partition("#")[0].split() for line in lines if line.startswith("    ")]
    return dict(each[0].split("=", 1) for each in words)


def conf_text(root: Path, node_ports: Mapping[str, int], ctld_port: int, cpus: int, more: Mapping[str, str]) -> str:
    """slurm.conf for a lab in ``root``; ``more`` replaces or adds settings, and an empty value removes one."""
    settings = {
        "ClusterName": "lab",
        "SlurmctldHost": "localhost(127.0.0.1)",
        "SlurmctldPort": str(ctld_port),
        "CommunicationParameters": "NoInAddrAny,NoCtldInAddrAny",  # listen on 127.0.0.1 alone
        "SlurmUser": "root",
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={root}/munge/socket",
        "CredType": "cred/munge",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "AccountingStorageType": "accounting_storage/none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_CPU",
        "MpiDefault": "none",
        "SlurmdParameters": "config_overrides",  # a node may claim CPUs that this machine lacks
        "StateSaveLocation": f"{root}/state",
        "SlurmdSpoolDir": f"{root}/spool/%n",
        "SlurmctldLogFile": f"{root}/log/slurmctld.log",
        "SlurmdLogFile": f"{root}/log/slurmd.%n.log",
        "SlurmctldPidFile": f"{root}/run/slurmctld.pid",
        "SlurmdPidFile": f"{root}/run/slurmd.%n.pid",
        "ReturnToService": "1",
        "SlurmctldTimeout": "30",
        "SlurmdTimeout": "30",
        "KillWait": "2",
        "MinJobAge": "60",
        "SchedulerParameters": "sched_interval=1,batch_sched_delay=0,sched_min_interval=0",
        "DebugFlags": "NO_CONF_HASH",
        "MaxNodeCount": "256",
        **more,
    }
    lines = [f"{key}={value}" for key, value in settings.items() if value]
    for node, port in node_ports.items():
        where = f"NodeHostname=localhost NodeAddr=127.0.0.1 Port={port}"
        lines.append(f"NodeName={node} {where} CPUs={cpus} RealMemory=1000 State=UNKNOWN")
    lines.append(f"PartitionName=main Nodes={','.join(node_ports)} Default=YES State=UP MaxTime=INFINITE")
    return "\n".join(lines)
