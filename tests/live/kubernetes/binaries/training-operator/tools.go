//go:build tools

// Package trainingoperator pins the Kubeflow controller of PyTorchJobs that tests run.
package trainingoperator

import _ "github.com/kubeflow/training-operator/cmd/training-operator.v1"
