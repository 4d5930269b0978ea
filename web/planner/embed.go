// Package planner has the planner's web page, which `berthctl plan --serve` and the operator serve.
package planner

import (
	"embed"
	"io/fs"
)

//go:generate make --no-print-directory -C ../.. web

//go:embed dist
var files embed.FS

// Page returns the files of the page. index.html refers to the others by relative paths.
func Page() fs.FS {
	page, err := fs.Sub(files, "dist")
	if err != nil {
		panic(err) // the folder is embedded above
	}
	return page
}
