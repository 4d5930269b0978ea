package openstack

import (
	"strings"
	"testing"
)

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		o    Options
		want string
	}{
		{"no directory", Options{}, "directory of OpenStack: none given"},
		{"a directory that would have to be quoted", Options{Dir: "/tmp/a b"}, "expected letters, digits and -_./ only"},
		{"a directory too long for sockets", Options{Dir: "/" + strings.Repeat("d", 60)}, "expected at most 50 bytes"},
		{"an unknown backend", Options{Dir: "/tmp/os", Backend: "linuxbridge"}, `backend: "linuxbridge": expected ovn or agent`},
	} {
		_, err := tc.o.complete()
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
	}
}

func TestWhatIsMissingIsNamed(t *testing.T) {
	t.Parallel()
	for _, o := range []Options{{Backend: OVN}, {Backend: Agent, Keystone: true}} {
		for _, name := range o.programs() {
			if path(name) != "" {
				continue
			}
			if err := o.installed(); err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "hack/deps.sh neutron") {
				t.Errorf("%s is not installed: got error %v, want one that names it", name, err)
			}
		}
	}
	if err := (Options{Backend: OVN}).installed(); path("mariadbd") == "" && err == nil {
		t.Error("MariaDB is not installed: no error")
	}
}

// The configurations of Neutron's server, its agents and Keystone contain the settings that Berth relies
// on.
func TestConfigurations(t *testing.T) {
	t.Parallel()
	c := Options{Dir: "/tmp/os", Backend: Agent, Keystone: true}
	k := &keystone{programs: &programs{Options: c}, password: "secret"}
	for what, text := range map[string]string{
		"mechanism_drivers = openvswitch": c.ml2Conf(), "transport_url = rabbit://guest:guest@198.18.0.1:5672/": c.neutronConf(""),
		"auth_strategy = keystone": c.neutronConf(""), "password = secret": c.neutronConf(k.tokensConf()), "unix_socket=/tmp/os/mysql/sql": k.conf(),
		`"create_port:binding:host_id": "rule:admin_only or role:berth"`: policy,
	} {
		if !strings.Contains(text, what) {
			t.Errorf("%s is not in\n%s", what, text)
		}
	}
	c.Backend, c.Keystone = OVN, false
	for _, what := range []string{"mechanism_drivers = ovn", "ovn_sb_connection = tcp:198.18.0.1:6642"} {
		if !strings.Contains(c.ml2Conf(), what) {
			t.Errorf("%s is not in\n%s", what, c.ml2Conf())
		}
	}
	if strings.Contains(c.neutronConf(""), "keystone_authtoken") {
		t.Error("neutron.conf refers to Keystone, but the instance has none")
	}
}
