// Package crds holds the definitions of Berth's kinds, for programs that raise
// a cluster with them.
package crds

import "embed"

// Files are the CustomResourceDefinitions (*.yaml).
//
//go:embed *.yaml
var Files embed.FS
