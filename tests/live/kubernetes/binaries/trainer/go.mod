module healthd.io/tests/binaries/trainer

go 1.24.0

require github.com/kubeflow/trainer/v2 v2.0.0
