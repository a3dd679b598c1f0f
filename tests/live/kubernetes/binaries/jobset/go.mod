module healthd.io/tests/binaries/jobset

go 1.24.0

require sigs.k8s.io/jobset v0.10.1
