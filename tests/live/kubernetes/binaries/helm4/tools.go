//go:build tools

// Package helm4 pins the second major of helm that the chart must work with; a module of its own, so that its
// dependencies choose no version for the API server or for Helm 3.
package helm4

import _ "helm.sh/helm/v4/cmd/helm"
