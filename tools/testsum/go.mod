// Module testsum turns `go test -json` into go test's ordinary output and a
// summary. It needs nothing but the standard library.
module github.com/berthnet/berth/tools/testsum

go 1.26.0
