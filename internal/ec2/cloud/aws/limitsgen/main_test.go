package main

import (
	"os"
	"testing"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ec2"

	"github.com/berthnet/berth/internal/ec2/cloud/limits"
	"github.com/berthnet/berth/lab/cloud/endpoints"
	"github.com/berthnet/berth/lab/cloud/spec"
)

const table = "../../limits/limits.tsv"

// Asking an EC2 that has the same numbers gives the same table, byte for byte.
func TestRefresh(t *testing.T) {
	lab, err := endpoints.Serve(spec.Default())
	if err != nil {
		t.Fatal(err)
	}
	defer lab.Close()
	k := lab.Credentials()
	api := ec2.New(ec2.Options{
		BaseEndpoint: &lab.EC2URL, Region: "lab-1",
		Credentials: credentials.NewStaticCredentialsProvider(k.AccessKeyID, k.SecretAccessKey, ""),
	})
	rows := map[string]limits.Entry{}
	if err := ask(t.Context(), api, rows); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(table)
	if err != nil {
		t.Fatal(err)
	}
	if got := render(rows); string(got) != string(want) {
		t.Errorf("%d bytes, want the table's %d", len(got), len(want))
	}
}

// Without -refresh the generator leaves an ordered table as it is, and orders another.
func TestNormalise(t *testing.T) {
	path := t.TempDir() + "/limits.tsv"
	rows := "m5.large\t3\t10\t10\tnitro\t1\nc5.large\t3\t10\t10\tnitro\t1\n"
	for range 2 {
		if err := os.WriteFile(path, []byte(rows), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := run(t.Context(), path, false, ""); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		want := header + "c5.large\t3\t10\t10\tnitro\t1\nm5.large\t3\t10\t10\tnitro\t1\n"
		if err != nil || string(got) != want {
			t.Fatalf("%q, %v", got, err)
		}
		rows = string(got)
	}
	if err := os.WriteFile(path, []byte("m5.large\t3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), path, false, ""); err == nil {
		t.Fatal("a short row is accepted")
	}
}
