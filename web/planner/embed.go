// Package planner has the planner's web page, which `berthctl plan --serve` and the operator serve.
package planner

import (
	"embed"
	"io/fs"
	"path"
)

//go:generate make --no-print-directory -C ../.. web

//go:embed dist
var dist embed.FS

// Page has the files of the page. index.html refers to the others by relative paths.
var Page fs.FS = page{}

type page struct{}

// Open implements fs.FS.
func (page) Open(name string) (fs.File, error) { return dist.Open(path.Join("dist", name)) }
