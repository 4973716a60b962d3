# Build, install and test Unbounded Bootstrap. `make help` lists the targets.

PREFIX  ?= /opt/unbounded
DESTDIR ?=
UNITDIR ?= /etc/systemd/system
CATALOGDIR ?= /usr/local/lib/systemd/catalog
GO      ?= go
BIN     ?= bin
LDFLAGS ?= -s -w

GOBUILD = CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)'
HELPERS = $(notdir $(patsubst %/,%,$(wildcard helpers/*/)))
COMMANDS = $(notdir $(patsubst %/,%,$(wildcard cmd/*/)))
SLOT    = $(DESTDIR)$(PREFIX)/slots/blue
TOOLS   = $(GO) tool -modfile=scripts/tools/go.mod

.PHONY: build install release test fault unit demo bench lint fmt help clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

build: ## build every program into bin/
	@mkdir -p $(BIN)
	@for helper in $(HELPERS); do \
		$(GOBUILD) -o $(BIN)/unbounded-$$helper ./helpers/$$helper || exit 1; \
	done
	@for command in $(COMMANDS); do $(GOBUILD) -o $(BIN)/$$command ./cmd/$$command || exit 1; done

install: build ## install programs below PREFIX, units into UNITDIR (DESTDIR= for packages); starts and enables nothing
	install -d $(SLOT) $(DESTDIR)$(PREFIX)/doc $(DESTDIR)$(UNITDIR)
	install -m 0755 $(BIN)/unbounded* $(SLOT)
	ln -sfn slots/blue $(DESTDIR)$(PREFIX)/current
	ln -sfn slots/blue $(DESTDIR)$(PREFIX)/last-good
	install -m 0644 docs/*.md LICENSE $(DESTDIR)$(PREFIX)/doc
	@install -d $(DESTDIR)$(CATALOGDIR) && \
		sed 's|@root@|$(PREFIX)|g' units/unbounded.catalog > $(DESTDIR)$(CATALOGDIR)/unbounded.catalog && \
		chmod 0644 $(DESTDIR)$(CATALOGDIR)/unbounded.catalog || \
		echo "install: no message catalog: $(CATALOGDIR) cannot be written; journalctl -x will not explain our events"
	@for unit in units/*.service units/*.target; do \
		sed 's|@root@|$(PREFIX)|g' $$unit > $(DESTDIR)$(UNITDIR)/$${unit##*/} || exit 1; \
		chmod 0644 $(DESTDIR)$(UNITDIR)/$${unit##*/} || exit 1; \
	done
	@# What `unboundedctl uninstall` removes, one path a line. What an earlier release placed stays listed.
	@manifest=$(DESTDIR)$(PREFIX)/manifest && touch $$manifest && { \
		cat $$manifest; \
		for program in $(addprefix unbounded-,$(HELPERS)) $(COMMANDS); do echo $(PREFIX)/slots/blue/$$program; done; \
		for doc in docs/*.md LICENSE; do echo $(PREFIX)/doc/$${doc##*/}; done; \
		for unit in units/*.service units/*.target; do echo $(UNITDIR)/$${unit##*/}; done; \
		printf '%s\n' $(CATALOGDIR)/unbounded.catalog $(PREFIX)/current $(PREFIX)/last-good; \
	} | sort -u > $$manifest.new && chmod 0644 $$manifest.new && mv $$manifest.new $$manifest

release: ## make what is published, in dist/ (VERSION=v1, ARCHES="amd64 arm64"); the same to the byte each time
	scripts/release

test: ## run every level of tests (needs root; installs what is missing)
	scripts/test

fault: ## kill, break reboot and unplug every stage at every change that it makes (hours; make test has a sample)
	UNBOUNDED_FAULT=full scripts/test fault vm

unit: ## run the tests that need neither root nor a booted host
	$(GO) test ./...

demo: ## boot a host, run the main job, show the node Ready
	scripts/demo

bench: ## measure: unpack against tar, second start, healthy boot
	scripts/bench

lint: ## golangci-lint, shellcheck, systemd-analyze verify
	scripts/lint

fmt: ## format the Go files
	$(TOOLS) golangci-lint fmt

clean: ## remove what build made
	rm -rf bin dist
