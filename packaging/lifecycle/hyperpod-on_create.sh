#!/bin/bash
# Of a HyperPod cluster's on_create.sh, before the line that calls lifecycle_script.py. That one starts slurmd, and where
# slurm.conf names healthd's hooks, a slurmd that does not find them drains the node at its first job. The daemon waits
# for Slurm. on-node.sh lies beside on_create.sh in the bucket of the lifecycle scripts, and HyperPod brings all of them.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bash "$here/on-node.sh" "${HEALTHD_PACKAGE:-s3://BUCKET/healthd_0.2.0-1_amd64.deb}" \
    "${HEALTHD_CONFIG:-s3://BUCKET/healthd.toml}"
