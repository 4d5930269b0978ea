// Package planner has the planner's web page, which `berthctl plan --serve` and the operator serve.
package planner

import (
	"embed"
	"io/fs"
)

//go:generate make --no-print-directory -C ../.. web

//go:embed dist
var dist embed.FS

// Page has the files of the page. index.html refers to the others by relative paths.
var Page = page()

func page() fs.FS {
	files, err := fs.Sub(dist, "dist")
	if err != nil {
		panic(err) // the folder is embedded above
	}
	return files
}
