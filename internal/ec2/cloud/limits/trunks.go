package limits

import (
	_ "embed"
	"strconv"
	"strings"
)

//go:embed trunks.tsv
var trunks string

// Branches tells how many branch network interfaces an instance of a type may have
// on its trunks; 0 when the type has no trunks, or the table does not know it.
func Branches(instanceType string) int {
	if instanceType == "" || strings.ContainsAny(instanceType, "\t\n#") {
		return 0
	}
	_, rest, ok := strings.Cut(trunks, "\n"+instanceType+"\t")
	if !ok {
		return 0
	}
	line, _, _ := strings.Cut(rest, "\n")
	n, err := strconv.Atoi(line)
	if err != nil {
		return 0
	}
	return n
}
