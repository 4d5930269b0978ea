package main

import (
	"crypto/x509"
	"encoding/pem"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

func TestInvalidSpecsAreRejected(t *testing.T) {
	file := func(f string) string { return "images: [{name: a, files: [" + f + "]}]" }
	for _, tc := range []struct{ name, spec, flags, want string }{
		{"no images", "images: []", "", "images is empty"},
		{"unknown field", "images: [{name: a, entrpoint: [/a]}]", "", `unknown field "entrpoint"`},
		{"name", "images: [{name: A}]", "", "images[0] (A): name: invalid reference format"},
		{"two images with the same archive name", "images: [{name: a/x}, {name: b/x}]", "", "another image's archive is called x too"},
		{"alias", "images: [{name: a, aliases: [b]}]", "", `aliases: "b" has no tag`},
		{"user", "images: [{name: a, user: nobody}]", "", `user is "nobody", expected UID or UID:GID`},
		{"relative", file("{to: x, text: y}"), "", `to is "x", expected a clean absolute path`},
		{"above", file("{to: /../x, text: y}"), "", `to is "/../x", expected a clean absolute path`},
		{"two kinds", file("{to: /x, text: y, link: z}"), "", "exactly one of from, link, text, roots and directory, found 2"},
		{"mode", file("{to: /x, text: y, mode: rw}"), "", `mode is "rw", expected permissions in octal`},
		{"libraries", file("{to: /x, text: y, libraries: true}"), "", "libraries goes only with from"},
		{"missing file", file("{to: /x, from: nowhere/x}"), "", "nowhere/x does not exist"},
		{"twice", file("{to: /x, text: y}, {to: /x, text: z}"), "", "/x is listed twice"},
		{"below a file", file("{to: /x, text: y}, {to: /x/z, text: z}"), "", "its parent /x is not a folder"},
		{"libraries of a text file", file("{to: /x, from: spec.yaml, libraries: true}"), "", "read the program"},
		{"tag", file("{to: /x, text: y}"), "-version=1+2", `tag "1+2" of a: invalid tag format`},
		{"platform", file("{to: /x, text: y}"), "-platforms=arm64", `-platforms has "arm64", expected OS/ARCHITECTURE`},
		{"format", file("{to: /x, text: y}"), "-formats=zip", `-formats has "zip"`},
		{"only", file("{to: /x, text: y}"), "-only=b", `-only has "b"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			spec := filepath.Join(dir, "spec.yaml")
			ok(t, os.WriteFile(spec, []byte(tc.spec), 0o644))
			err := run(append([]string{"-spec", spec, "-files", dir, "-out", filepath.Join(dir, "out"), "-version=v1"}, strings.Fields(tc.flags)...), io.Discard)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error = %v, want %q", err, tc.want)
			}
		})
	}
}

// An authority that is trusted for some certificates only is not in the file, which cannot express that.
func TestRootCertificates(t *testing.T) {
	data, err := rootCertificates()
	ok(t, err)
	var names []string
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		c, err := x509.ParseCertificate(block.Bytes)
		ok(t, err)
		names = append(names, c.Subject.CommonName)
	}
	if !slices.Contains(names, "Amazon Root CA 1") || len(names) < 50 {
		t.Errorf("%d certificates, want at least 50 with Amazon's", len(names))
	}
	all := 0
	for root := range bundle.Roots() {
		all++
		if root.Constraint == nil {
			continue
		}
		if block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); strings.Contains(string(data), string(block)) {
			t.Error("the file contains a certificate with a constraint")
		}
	}
	t.Logf("%d of %d certificates", len(names), all)
}

func TestSharedLibraries(t *testing.T) {
	bash, err := sharedLibraries("/bin/bash")
	ok(t, err)
	if !slices.ContainsFunc(bash, func(l string) bool { return strings.Contains(l, "libc.so") }) ||
		!slices.ContainsFunc(bash, func(l string) bool { return strings.Contains(l, "/ld-linux") }) {
		t.Errorf("libraries of bash = %q, want libc and the interpreter", bash)
	}
	for _, library := range bash {
		if _, err := os.Stat(library); err != nil {
			t.Error(err)
		}
	}
}
