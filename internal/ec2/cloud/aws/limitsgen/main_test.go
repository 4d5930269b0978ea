package main

import (
	"os"
	"testing"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ec2"

	"github.com/berthnet/berth/internal/ec2/cloud/limits"
	"github.com/berthnet/berth/lab/cloud/endpoints"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/test/harness/check"
)

const table = "../../limits/limits.tsv"

// Asking an EC2 that has the same numbers gives the same table, byte for byte.
func TestRefresh(t *testing.T) {
	lab := check.Must(endpoints.Serve(spec.Default()))(t)
	defer lab.Close()
	k := lab.Credentials()
	api := ec2.New(ec2.Options{
		BaseEndpoint: &lab.EC2URL, Region: "lab-1",
		Credentials: credentials.NewStaticCredentialsProvider(k.AccessKeyID, k.SecretAccessKey, ""),
	})
	rows := map[string]limits.Entry{}
	check.OK(t, ask(t.Context(), api, rows))
	want := check.Must(os.ReadFile(table))(t)
	if got := render(rows); string(got) != string(want) {
		t.Errorf("%d bytes, want the table's %d", len(got), len(want))
	}
}

// Without -refresh the generator leaves an ordered table as it is, and orders another.
func TestNormalise(t *testing.T) {
	path := t.TempDir() + "/limits.tsv"
	rows := "m5.large\t3\t10\t10\tnitro\t1\nc5.large\t3\t10\t10\tnitro\t1\n"
	for range 2 {
		check.OK(t, os.WriteFile(path, []byte(rows), 0o600))
		check.OK(t, run(t.Context(), path, false, ""))
		got, err := os.ReadFile(path)
		want := header + "c5.large\t3\t10\t10\tnitro\t1\nm5.large\t3\t10\t10\tnitro\t1\n"
		if err != nil || string(got) != want {
			t.Fatalf("%q, %v", got, err)
		}
		rows = string(got)
	}
	check.OK(t, os.WriteFile(path, []byte("m5.large\t3\n"), 0o600))
	if err := run(t.Context(), path, false, ""); err == nil {
		t.Fatal("a short row is accepted")
	}
}
