// Module generate pins the programs that `make generate` runs, apart from
// protoc itself, which is a Debian package (hack/deps.sh).
module github.com/berthnet/berth/tools/generate

go 1.26.0

tool (
	google.golang.org/grpc/cmd/protoc-gen-go-grpc
	google.golang.org/protobuf/cmd/protoc-gen-go
)

require (
	google.golang.org/grpc/cmd/protoc-gen-go-grpc v1.6.2 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)
