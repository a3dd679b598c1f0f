//go:build tools

// Package helm pins the helm that renders the chart in tests; a module of its own, so that its dependencies choose no
// version for the API server.
package helm

import _ "helm.sh/helm/v3/cmd/helm"
