package harness

import (
	"os"
	"path/filepath"
)

// Tree is the top of the source tree: the folder of go.mod above the package's, in
// which go test starts a test. Where there is none, it is the file system's root.
func Tree() string {
	dir, _ := os.Getwd()
	for dir != filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	return dir
}
