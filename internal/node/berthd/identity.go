package berthd

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/statefile"
)

// identityFile stores the identity for a start without the metadata service.
const identityFile = "identity.json"

// knownTimeout bounds the wait for the metadata service if the identity is known from an earlier start in
// the same boot.
const knownTimeout = 5 * time.Second

type savedIdentity struct {
	BootID   string         `json:"bootID"`
	Identity cloud.Identity `json:"identity"`
}

// identify queries the metadata service for the instance's identity. If it does not respond, or names
// another instance, the identity from an earlier start in the same boot applies: an instance cannot change
// its identity while it runs, and another instance has other ENIs and records.
func identify(ctx context.Context, meta cloud.Metadata, stateDir, bootID string, log *slog.Logger) (cloud.Identity, error) {
	known, isKnown := readIdentity(stateDir, bootID)
	askCtx := ctx
	if isKnown {
		var cancel context.CancelFunc
		askCtx, cancel = context.WithTimeout(ctx, knownTimeout)
		defer cancel()
	}
	id, err := meta.Identity(askCtx)
	switch {
	case err == nil && isKnown && id.InstanceID != known.InstanceID:
		log.Error("the metadata service names another instance than before in this boot; keeping the former identity. Remove the file if the node is the other instance",
			"instance", known.InstanceID, "other", id.InstanceID, "file", filepath.Join(stateDir, identityFile))
		return known, nil
	case err == nil:
		if err := statefile.ReplaceJSON(stateDir, identityFile, savedIdentity{bootID, id}); err != nil { // for example on a full disk
			log.Warn("saving the node's identity failed; the next start needs the metadata service", "err", err)
		}
		return id, nil
	case isKnown && ctx.Err() == nil:
		log.Warn("the metadata service does not answer; using the identity of a former start", "instance", known.InstanceID, "err", err)
		return known, nil
	}
	return id, fmt.Errorf("reading the identity from the metadata service: %w", err)
}

func readIdentity(dir, bootID string) (cloud.Identity, bool) {
	var saved savedIdentity
	ok, err := statefile.LoadJSON(dir, identityFile, &saved)
	if err != nil || !ok || saved.BootID != bootID || saved.Identity.InstanceID == "" {
		return cloud.Identity{}, false
	}
	return saved.Identity, true
}
