package install

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
)

// Network holds the settings in the installed configuration.
type Network struct {
	CNIVersions []string      // CNI versions of the configuration, oldest first; at least one
	Name        string        // name of the network
	Socket      string        // socket of the daemon
	MTU         int           // bytes; 0: the daemon's choice
	Timeout     time.Duration // timeout of the plugin's calls; 0: the plugin's default
	Tells       []string      // capabilities of the plugin
	Chain       []string      // plugins after berth, by type

	foreign []foreign
}

// capabilities are those that the reference plugins must declare to receive arguments from the runtime
// (CNI conventions).
var capabilities = map[string]string{
	"portmap":   "portMappings",
	"bandwidth": "bandwidth",
	"tuning":    "mac",
}

type conflist struct {
	CNIVersion   string   `json:"cniVersion"`
	CNIVersions  []string `json:"cniVersions,omitempty"`
	Name         string   `json:"name"`
	Plugins      []any    `json:"plugins"`
	BerthPlugins []string `json:"berthPlugins"` // types of Berth's entries; runtimes ignore this field
}

type pluginConf struct {
	Type         string          `json:"type"`
	Socket       string          `json:"socket,omitempty"`
	MTU          int             `json:"mtu,omitempty"`
	Timeout      string          `json:"timeout,omitempty"`
	Capabilities map[string]bool `json:"capabilities,omitempty"`
}

// named is what is read of any plugin's entry. Other fields have other types there, such as the MTU of the Amazon VPC CNI, a
// string.
type named struct {
	Type string `json:"type"`
}

// Conflist returns the content of the configuration file.
func (n Network) Conflist() ([]byte, error) {
	own := []pluginConf{n.plugin()}
	for _, kind := range n.Chain {
		own = append(own, chained(kind))
	}
	c := conflist{Name: n.Name, Plugins: merged(own, n.foreign)}
	for _, p := range own {
		c.BerthPlugins = append(c.BerthPlugins, p.Type)
	}
	c.CNIVersion, c.CNIVersions = offered(n.CNIVersions)
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("writing the network configuration: %w", err)
	}
	return append(text, '\n'), nil
}

// plugin returns the entry of berth.
func (n Network) plugin() pluginConf {
	berth := pluginConf{Type: pluginName, Socket: n.Socket, MTU: n.MTU}
	if n.Timeout > 0 {
		berth.Timeout = n.Timeout.String()
	}
	for _, capability := range n.Tells {
		if berth.Capabilities == nil {
			berth.Capabilities = map[string]bool{}
		}
		berth.Capabilities[capability] = true
	}
	return berth
}

// chained returns the entry of a plugin after berth.
func chained(kind string) pluginConf {
	p := pluginConf{Type: kind}
	if capability := capabilities[kind]; capability != "" {
		p.Capabilities = map[string]bool{capability: true}
	}
	return p
}

// pluginsOf returns the plugins of a network configuration, either a list or a single plugin; none if it is
// invalid.
func pluginsOf(text []byte) []named {
	var c struct {
		named
		Plugins []named `json:"plugins"`
	}
	if json.NewDecoder(bytes.NewReader(text)).Decode(&c) != nil {
		return nil
	}
	if c.Type != "" {
		c.Plugins = append(c.Plugins, c.named)
	}
	return c.Plugins
}
