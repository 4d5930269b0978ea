package nicrequest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthnet/berth/internal/nicrequest"
)

const nicsField = "metadata.annotations[berth.dev/nics]"

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       []nicrequest.Entry
	}{
		{"nothing", "", []nicrequest.Entry{}},
		{"an empty list", "[]", []nicrequest.Entry{}},
		{"a subnet", "- subnet: subnet-1\n", []nicrequest.Entry{{Subnet: "subnet-1"}}},
		{"an address", "- subnet: subnet-1\n  ip: 192.168.0.12\n", []nicrequest.Entry{{Subnet: "subnet-1", IP: "192.168.0.12"}}},
		{"a port", "- portID: a2815656-76f7-46d4-9d11-057063db1a14", []nicrequest.Entry{{PortID: "a2815656-76f7-46d4-9d11-057063db1a14"}}},
		{"two, from the design of Arktos", `
      - subnet: subnet-1
        ip: 192.168.0.12
        securityGroup: aa5db150-a63d-4bd1-8d70-2dff67c6a5d9
      - portID: a2815656-76f7-46d4-9d11-057063db1a14
`, []nicrequest.Entry{
			{Subnet: "subnet-1", IP: "192.168.0.12", SecurityGroups: []string{"aa5db150-a63d-4bd1-8d70-2dff67c6a5d9"}},
			{PortID: "a2815656-76f7-46d4-9d11-057063db1a14"},
		}},
		{"other spellings", `[{"subnetName": "a", "ipAddress": "10.0.0.5", "name": "net1"}, {"portId": "p"}]`, []nicrequest.Entry{{Name: "net1", Subnet: "a", IP: "10.0.0.5"}, {PortID: "p"}}},
		{"JSON", `[{"nic": "db", "defaultRoute": true}, {"addresses": [{"subnet": "four"}, {"subnet": "six", "ip": "fd00::5"}], "securityGroups": ["a", "b"]}]`, []nicrequest.Entry{
			{NIC: "db", DefaultRoute: true},
			{Addresses: []nicrequest.EntryAddress{{Subnet: "four"}, {Subnet: "six", IP: "fd00::5"}}, SecurityGroups: []string{"a", "b"}},
		}},
		{"NICs of virtual machines", "[{binding: bridge}, {binding: tap, tap: {owner: 0, group: 36, multiQueue: true}}]", []nicrequest.Entry{
			{Binding: "bridge"}, {Binding: "tap", Tap: &nicrequest.Tap{Owner: id(0), Group: id(36), MultiQueue: true}},
		}},
		{"NIC without keys", "[{}]", []nicrequest.Entry{{}}},
	} {
		got, errs := nicrequest.Parse(tc.text)
		if d := cmp.Diff(tc.want, got); d != "" || errs != nil {
			t.Errorf("%s: Parse(): errors %v, entries (-want +got):\n%s", tc.name, errs, d)
		}
	}
}

func id(n int64) *int64 { return &n }

// An error names the invalid field, and what was expected.
func TestParseErrors(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"invalid YAML", "- [", nicsField + ": is neither YAML nor JSON: line 1"},
		{"tabs", "-\tsubnet: a\n\tip: b", nicsField + ": is neither YAML nor JSON"},
		{"a string", "subnet-1", nicsField + `: is "subnet-1", expected a list of NICs such as [{subnet: subnet-1}]`},
		{"NIC in place of a list", "{subnet: a}", nicsField + `: is {"subnet":"a"}, expected a list of NICs`},
		{"string in the list", "[subnet-1]", nicsField + `[0]: is "subnet-1", expected keys and values`},
		{"null in the list", "[{}, null]", nicsField + `[1]: is null, expected keys and values`},
		{"an unknown key", "[{}, {subnett: a}]", nicsField + "[1].subnett: unknown, expected one of addresses, binding, defaultRoute, ip, name, nic, portID, securityGroups, subnet, tap"},
		{"key in another case", "[{PortID: a}]", nicsField + "[0].PortID: unknown"},
		{"a key twice", "[{ip: 10.0.0.1, ip: 10.0.0.2}]", nicsField + `: is neither YAML nor JSON: unmarshal errors: line 1: key "ip" already set in map`},
		{"a key in two spellings", "[{ip: 10.0.0.1, ipAddress: 10.0.0.2}]", nicsField + "[0].ipAddress: means the same as ip, expected only one of them"},
		{"one group and several", "[{securityGroup: a, securityGroups: [b]}]", nicsField + "[0].securityGroups: means the same as securityGroup"},
		{"number for a string", "[{name: 7}]", nicsField + "[0].name: is 7, expected a non-empty string"},
		{"number that looks like an address", "[{ip: 10.12}]", nicsField + "[0].ip: is 10.12, expected a non-empty string"},
		{"null for a string", "[{ip: }]", nicsField + "[0].ip: is null, expected a non-empty string"},
		{"an empty text", "[{ip: ''}]", nicsField + `[0].ip: is "", expected a non-empty string`},
		{"securityGroups that is not a list", "[{securityGroups: a}]", nicsField + `[0].securityGroups: is "a", expected a list of non-empty strings`},
		{"empty list of groups", "[{securityGroups: []}]", nicsField + `[0].securityGroups: is [], expected a list of non-empty strings`},
		{"an empty group", "[{securityGroup: ''}]", nicsField + `[0].securityGroup: is "", expected a non-empty string`},
		{"addresses that is not a list", "[{addresses: 10.0.0.1}]", nicsField + `[0].addresses: is "10.0.0.1", expected a list such as`},
		{"unknown key of an address", "[{addresses: [{subnetName: a}]}]", nicsField + `[0].addresses: [0] has the key "subnetName", expected subnet and ip`},
		{"string for a boolean", "[{defaultRoute: 'yes'}]", nicsField + `[0].defaultRoute: is "yes", expected true or false`},
		{"tap that is not a map", "[{tap: true}]", nicsField + "[0].tap: is true, expected keys and values such as {owner: 107, multiQueue: true}"},
		{"unknown key of a tap", "[{tap: {mac: a}}]", nicsField + `[0].tap: has the key "mac", expected owner, group or multiQueue`},
		{"user name for a user ID", "[{tap: {owner: qemu}}]", nicsField + `[0].tap: has the owner "qemu", expected a user ID from 0 to 4294967294`},
		{"group ID above the maximum", "[{tap: {group: 4294967295}}]", nicsField + `[0].tap: has the group 4294967295, expected a group ID`},
		{"null for a user", "[{tap: {owner: null}}]", nicsField + `[0].tap: has the owner null, expected`},
		{"number for multiQueue", "[{tap: {multiQueue: 2}}]", nicsField + `[0].tap: has multiQueue 2, expected true or false`},
		{"null for a boolean", "[{defaultRoute: null}]", nicsField + `[0].defaultRoute: is null, expected true or false`},
		{"annotation that is too long", strings.Repeat("#", 16<<10) + "\n", nicsField + ": is 16385 bytes long, expected 16384 at most"},
		{"too many NICs", "[" + strings.Repeat("{},", 33) + "]", nicsField + ": has 33 NICs, expected 32 at most"},
		{"long value is truncated", "[" + strings.Repeat("a", 1000) + "]", nicsField + `[0]: is "` + strings.Repeat("a", 59) + "..., expected"},
	} {
		_, errs := nicrequest.Parse(tc.text)
		if err := errs.Err(); err == nil || !strings.HasPrefix(err.Error(), tc.want) {
			t.Errorf("%s: error = %v\nwant prefix %s", tc.name, err, tc.want)
		}
	}
}

// Parse reports all errors, in the order of the NICs.
func TestParseReportsAllErrors(t *testing.T) {
	_, errs := nicrequest.Parse("[{a: 1, b: 2}, {name: ok}, {ip: 1}]")
	var fields []string
	for _, e := range errs {
		fields = append(fields, e.Field)
	}
	want := []string{nicsField + "[0].a", nicsField + "[0].b", nicsField + "[2].ip"}
	if d := cmp.Diff(want, fields); d != "" {
		t.Errorf("invalid fields (-want +got):\n%s", d)
	}
}

// YAML aliases cannot exhaust the memory of the programs that parse the annotation. The YAML library's own limit counts
// values, and would allow 140,000 copies of one long text.
func TestParseRejectsYAMLAliases(t *testing.T) {
	const want = nicsField + ": has a YAML alias (*NAME), expected the value itself"
	text := "- [" + strings.Repeat("0,", 3500) + "0]\n- &a " + strings.Repeat("x", 6000) + "\n"
	for c := 'b'; c < 'g'; c++ {
		times := 10
		if c == 'f' {
			times = 14
		}
		text += fmt.Sprintf("- &%c [%s]\n", c, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*%c,", c-1), times), ","))
	}
	for _, text := range []string{text, "[&a {subnet: a}, *a]", "[{<<: &a {subnet: a}}, {<<: *a}]"} {
		if _, errs := nicrequest.Parse(text); errs.Err() == nil || errs.Err().Error() != want {
			t.Errorf("error = %.200v\nwant %s", errs.Err(), want)
		}
	}
	for _, text := range []string{"[&a {subnet: a}]", "[{subnet: 'a *b &c'}]", "[{subnet: a*b}]"} {
		if _, errs := nicrequest.Parse(text); errs.Err() != nil {
			t.Errorf("Parse(%q) failed: %v", text, errs)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("- subnet: a\n  ip: 10.0.0.1\n")
	f.Add(`[{"portID": "p"}, {"nic": "n"}]`)
	f.Add("[{addresses: [{subnet: a}]}]")
	f.Fuzz(func(t *testing.T, text string) {
		entries, errs := nicrequest.Parse(text)
		if len(errs) > 0 {
			return
		}
		nics, errs := nicrequest.Complete(entries, nicrequest.First{Name: "eth0", IsPort: true}, 0)
		if len(errs) > 0 {
			return
		}
		names := map[string]bool{}
		for _, n := range nics {
			if n.Name == "" || len(n.Name) > 15 || names[n.Name] {
				t.Errorf("%q: invalid or duplicate name %q", text, n.Name)
			}
			names[n.Name] = true
		}
		if !names["eth0"] {
			t.Errorf("%q: names = %v, want eth0 among them", text, names)
		}
	})
}
