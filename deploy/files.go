package deploy

import (
	"embed"
	"io/fs"
)

//go:embed all:chart
var files embed.FS

// Chart is the chart's folder.
func Chart() fs.FS { return sub("chart") }

// CRDs are the CustomResourceDefinitions (*.yaml) as generated. The chart adds the release's labels
// when it installs them.
func CRDs() fs.FS { return sub("chart/files/crds") }

func sub(dir string) fs.FS {
	f, err := fs.Sub(files, dir)
	if err != nil {
		panic(err) //nolint:forbidigo // the name of an embedded folder is a constant
	}
	return f
}
