package ovn

import (
	"context"
	"fmt"

	"github.com/go-logr/logr"
	"github.com/ovn-kubernetes/libovsdb/cache"
	"github.com/ovn-kubernetes/libovsdb/client"
	"github.com/ovn-kubernetes/libovsdb/model"
)

// logicalPort has the watched columns of table Logical_Switch_Port (ovn-nb(5)).
type logicalPort struct {
	UUID string `ovsdb:"_uuid"`
	Name string `ovsdb:"name"`
	Up   *bool  `ovsdb:"up"`
}

func (v *OVN) watch(ctx context.Context) error {
	schema, err := model.NewClientDBModel("OVN_Northbound", map[string]model.Model{"Logical_Switch_Port": &logicalPort{}})
	if err != nil {
		return err
	}
	quiet := logr.Discard()
	if v.nb, err = client.NewOVSDBClient(schema, client.WithEndpoint("unix:"+v.central.In("nb.sock")), client.WithLogger(&quiet)); err != nil {
		return err
	}
	if err := v.nb.Connect(ctx); err != nil {
		return fmt.Errorf("connect to OVN's northbound database: %w", err)
	}
	v.nb.Cache().AddEventHandler(&cache.EventHandlerFuncs{
		AddFunc:    func(_ string, m model.Model) { v.seen(m, true) },
		UpdateFunc: func(_ string, _, m model.Model) { v.seen(m, true) },
		DeleteFunc: func(_ string, m model.Model) { v.seen(m, false) },
	})
	p := &logicalPort{}
	if _, err := v.nb.Monitor(ctx, v.nb.NewMonitor(client.WithTable(p, &p.Name, &p.Up))); err != nil {
		return fmt.Errorf("watch OVN's ports: %w", err)
	}
	return nil
}

// seen reports a port whose state has changed. Calls do not overlap.
func (v *OVN) seen(m model.Model, there bool) {
	p, ok := m.(*logicalPort)
	if !ok {
		return
	}
	up := there && p.Up != nil && *p.Up
	v.mu.Lock()
	was, onState := v.up[p.Name], v.onState
	v.up[p.Name] = up
	if !there {
		delete(v.up, p.Name)
	}
	v.mu.Unlock()
	if was != up {
		onState(p.Name, up)
	}
}

// OnUp calls f for every port that is up or comes up, which means that a chassis has bound it and its rules are in place,
// and for every port that goes down. Calls do not overlap. Only one f is supported.
func (v *OVN) OnUp(f func(port string, up bool)) {
	v.mu.Lock()
	v.onState = f
	var up []string
	for port, is := range v.up {
		if is {
			up = append(up, port)
		}
	}
	v.mu.Unlock()
	for _, port := range up {
		f(port, true)
	}
}
