//go:build tools

// Package jobset pins the controller of JobSet that tests run.
package jobset

import _ "sigs.k8s.io/jobset"
