package ovsdb

import (
	"fmt"

	"github.com/ovn-kubernetes/libovsdb/model"
)

// ifaceRow has the watched columns of table Interface (ovs-vswitchd.conf.db(5)).
type ifaceRow struct {
	UUID        string            `ovsdb:"_uuid"`
	Name        string            `ovsdb:"name"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
	OFPort      *int              `ovsdb:"ofport"`
	Error       *string           `ovsdb:"error"`
}

func schema() (model.ClientDBModel, error) {
	m, err := model.NewClientDBModel(database, map[string]model.Model{"Interface": &ifaceRow{}})
	if err != nil {
		return model.ClientDBModel{}, fmt.Errorf("model of the database %s: %w", database, err)
	}
	return m, nil
}
