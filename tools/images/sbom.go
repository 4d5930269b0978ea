package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"maps"
	"path"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/distribution/reference"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	spdx "github.com/spdx/tools-golang/spdx/v2/v2_3"
)

// sbom describes the content of an image as an SPDX 2.3 document in JSON: the image, the Go programs in it, the modules
// and the standard library of each, from the programs' build information, and the source of the root certificates. Other
// files are not described. It depends on the image only, so the same image has the same document.
func sbom(name reference.NamedTagged, img v1.Image, platform v1.Platform, root rootfs, release Release) ([]byte, error) {
	digest, err := img.Digest()
	if err != nil {
		return nil, fmt.Errorf("digest of the image: %w", err)
	}
	base := path.Base(name.Name())
	doc := &document{packages: map[common.ElementID]*spdx.Package{}}
	image := doc.add(spdx.Package{
		PackageName: base, PackageVersion: release.Version, PrimaryPackagePurpose: "CONTAINER",
		PackageLicenseDeclared:    release.Licenses,
		PackageChecksums:          []common.Checksum{{Algorithm: common.SHA256, Value: digest.Hex}},
		PackageExternalReferences: purl(fmt.Sprintf("pkg:oci/%s@%s?arch=%s", base, strings.Replace(digest.String(), ":", "%3A", 1), platform.Architecture)),
	})
	for _, file := range slices.Sorted(maps.Keys(root)) {
		if err := doc.program(image, file, root[file], release); err != nil {
			return nil, err
		}
	}
	return doc.json(base+" "+platform.String(), "https://github.com/berthnet/berth/sbom/"+base+"-"+digest.Hex)
}

// document is an SPDX document under construction.
type document struct {
	packages      map[common.ElementID]*spdx.Package
	relationships []*spdx.Relationship
}

// program adds a Go program and its modules. Other files are left out.
func (d *document) program(image common.ElementID, file string, e entry, release Release) error {
	if e.roots {
		return d.roots(image)
	}
	info, err := buildinfo.Read(bytes.NewReader(e.content))
	if err != nil {
		return nil //nolint:nilerr // no Go program
	}
	sum := sha256.Sum256(e.content)
	origin := originOf(info, release)
	program := d.add(spdx.Package{
		PackageName: info.Path, PackageVersion: origin.Version, PackageFileName: file, PrimaryPackagePurpose: "APPLICATION",
		PackageLicenseDeclared: origin.Licenses,
		PackageChecksums:       []common.Checksum{{Algorithm: common.SHA256, Value: hex.EncodeToString(sum[:])}},
	})
	d.relate(image, "CONTAINS", program)
	if origin != release {
		d.relate(program, "GENERATED_FROM", d.module(info.Main.Path, info.Main.Version))
	}
	d.relate(program, "DEPENDS_ON", d.module("stdlib", strings.TrimPrefix(info.GoVersion, "go")))
	for _, dep := range info.Deps {
		if dep.Replace != nil {
			dep = dep.Replace
		}
		d.relate(program, "DEPENDS_ON", d.module(dep.Path, dep.Version))
	}
	return nil
}

// originOf returns the release that a program belongs to. A program whose main module has a version was built from that
// published module and does not belong to the packed release, whose sources are built in their own folder, without a
// version.
func originOf(info *debug.BuildInfo, release Release) Release {
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return Release{Version: v}
	}
	return release
}

// roots adds the source of the root certificates, with the version of this program's build.
func (d *document) roots(image common.ElementID) error {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return fmt.Errorf("this program was built without build information")
	}
	for _, dep := range info.Deps {
		if dep.Path == rootsModule {
			d.relate(image, "CONTAINS", d.module(dep.Path, dep.Version))
			return nil
		}
	}
	return fmt.Errorf("this program's build information does not name %s", rootsModule)
}

func (d *document) module(name, version string) common.ElementID {
	return d.add(spdx.Package{
		PackageName: name, PackageVersion: version, PrimaryPackagePurpose: "LIBRARY",
		PackageExternalReferences: purl("pkg:golang/" + name + "@" + strings.ReplaceAll(version, "+", "%2B")),
	})
}

var notInID = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

// add adds a package once, and returns its identifier.
func (d *document) add(p spdx.Package) common.ElementID {
	id := common.ElementID(notInID.ReplaceAllString("Package-"+p.PackageName+"-"+p.PackageVersion, "-"))
	p.PackageSPDXIdentifier = id
	p.PackageDownloadLocation = "NOASSERTION"
	p.PackageLicenseConcluded = "NOASSERTION"
	if p.PackageLicenseDeclared == "" {
		p.PackageLicenseDeclared = "NOASSERTION"
	}
	p.PackageCopyrightText = "NOASSERTION"
	d.packages[id] = &p
	return id
}

func (d *document) relate(a common.ElementID, how string, b common.ElementID) {
	d.relationships = append(d.relationships, &spdx.Relationship{
		RefA: common.DocElementID{ElementRefID: a}, Relationship: how, RefB: common.DocElementID{ElementRefID: b},
	})
}

// json encodes the document with a name and a unique URI.
func (d *document) json(name, namespace string) ([]byte, error) {
	doc := spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: "DOCUMENT",
		DocumentName: name, DocumentNamespace: namespace,
		CreationInfo: &spdx.CreationInfo{
			Created:  epoch.UTC().Format("2006-01-02T15:04:05Z"),
			Creators: []common.Creator{{CreatorType: "Tool", Creator: "berth-tools-images"}},
		},
		Relationships: d.relationships,
	}
	for _, id := range slices.Sorted(maps.Keys(d.packages)) {
		p := d.packages[id]
		doc.Packages = append(doc.Packages, p)
		if p.PrimaryPackagePurpose == "CONTAINER" {
			doc.Relationships = append([]*spdx.Relationship{{
				RefA: common.DocElementID{ElementRefID: "DOCUMENT"}, Relationship: "DESCRIBES",
				RefB: common.DocElementID{ElementRefID: id},
			}}, doc.Relationships...)
		}
	}
	var out bytes.Buffer
	if err := json.Write(&doc, &out, json.Indent("  ")); err != nil {
		return nil, fmt.Errorf("write the SBOM of %s: %w", name, err)
	}
	return out.Bytes(), nil
}

func purl(locator string) []*spdx.PackageExternalReference {
	return []*spdx.PackageExternalReference{{Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL, Locator: locator}}
}
