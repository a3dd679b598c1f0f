//go:build tools

// Package trainer pins the Kubeflow controller of TrainJobs that tests run.
package trainer

import _ "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager"
