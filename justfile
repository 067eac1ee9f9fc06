# The inner loop. `just` lists the recipes; each is one command that also works without just.

# Lists the recipes.
default:
    @just --list

# Formats, and checks what the compiler can tell without building.
check:
    cargo fmt --all
    cargo clippy --workspace --all-targets -- -D warnings

# Runs the unit tests of one crate: `just unit kernels`, `just unit exec quota`.
unit crate *filter:
    cargo test -p tessera-{{crate}} --lib -- {{filter}}

# Runs tests of whole statements whose name contains the filter: `just whole slt::queries`.
whole *filter:
    cargo test --test tests -- {{filter}}

# Runs the SQL scripts whose path contains the name: `just slt masks`.
slt name:
    SLT={{name}} cargo test --test tests slt

# Rewrites the expected values of sql/ with NumPy, xarray and DuckDB.
goldens:
    python sql/make_goldens.py

# Rewrites the snapshots of plans; read the diff.
snapshots:
    INSTA_UPDATE=always cargo test -p tessera-planner -p tessera-frontend -p tessera-cells

# Builds the docs as CI does.
docs:
    RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" cargo doc --workspace --no-deps --document-private-items

# Shows where a clean release build spends its time.
timings:
    cargo build --release --timings

# Runs all checks, as CI does.
ci:
    .ci/run
