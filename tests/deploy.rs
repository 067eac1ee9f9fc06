//! The files in `deploy/`, as far as one machine without a network can test them: the parts of the manifests fit each
//! other and the binary, and their commands make a cluster, with TLS and with the shipped names.

mod fleet;
mod yaml;

use crate::common::binary;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// How long a worker that is asked to end may take: `PATIENCE` of its supervisor.
const LEAVES_S: u64 = 40;

fn at(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(path)
}

fn text(path: &str) -> String {
    fs::read_to_string(at(path)).unwrap()
}

/// A value by its path; `0` is the first item of a list.
fn get<'a>(value: &'a Value, path: &str) -> &'a Value {
    let found = value.pointer(&format!("/{}", path.replace('.', "/")));
    found.unwrap_or_else(|| panic!("no `{path}` in {value}"))
}

fn word<'a>(value: &'a Value, path: &str) -> &'a str {
    get(value, path).as_str().unwrap_or_else(|| panic!("`{path}` is no text in {value}"))
}

fn words(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|v| v.as_str().unwrap().to_owned()).collect()
}

/// The objects of all manifests by kind and name, as `StatefulSet/tessera-worker`.
fn objects() -> BTreeMap<String, Value> {
    let files = ["configuration", "server", "worker"];
    let all = files.iter().flat_map(|f| yaml::documents(&text(&format!("kubernetes/{f}.yaml"))));
    let named = |o: Value| (format!("{}/{}", word(&o, "kind"), word(&o, "metadata.name")), o);
    all.map(named).collect()
}

fn compose() -> Value {
    yaml::documents(&text("compose.yaml")).remove(0)
}

/// The value of a flag in a command, in both of its spellings.
fn flag<'a>(args: &'a [String], name: &str) -> &'a str {
    let joined = args.iter().find_map(|a| a.strip_prefix(name)?.strip_prefix('='));
    let apart = || args.iter().skip_while(|a| *a != name).nth(1).map(String::as_str);
    joined.or_else(apart).unwrap_or_else(|| panic!("no {name} in {args:?}"))
}

/// The pods: the workload, its container and the flags of it.
fn pods() -> [(Value, Value, Vec<String>); 2] {
    let all = objects();
    ["Deployment/tessera-server", "StatefulSet/tessera-worker"].map(|name| {
        let container = get(&all[name], "spec.template.spec.containers.0").clone();
        let args = words(&container["args"]);
        (all[name].clone(), container, args)
    })
}

/// `$(POD)` and `$(NAMESPACE)` as Kubernetes writes them for one pod of the workers.
fn expanded(arg: &str, number: u64) -> String {
    let [_, (set, container, _)] = pods();
    let env = container["env"].as_array().unwrap();
    let mut arg = arg.to_owned();
    for variable in env {
        let value = match word(variable, "valueFrom.fieldRef.fieldPath") {
            "metadata.name" => format!("{}-{number}", word(&set, "metadata.name")),
            "metadata.namespace" => word(&set, "metadata.namespace").to_owned(),
            path => panic!("{path}"),
        };
        arg = arg.replace(&format!("$({})", word(variable, "name")), &value);
    }
    assert!(!arg.contains("$("), "{arg}");
    arg
}

/// The shipped names of the certificate.
fn shipped() -> Vec<String> {
    words(get(&objects()["Certificate/tessera"], "spec.dnsNames"))
}

/// Matches a host like the parties do: `*` matches one label, and at least two labels must follow it.
fn covers(names: &[String], host: &str) -> bool {
    names.iter().any(|name| match name.strip_prefix("*.") {
        Some(domain) => {
            domain.contains('.') && host.split_once('.').is_some_and(|(_, of)| of == domain)
        }
        None => name == host,
    })
}

#[test]
fn certificates_have_every_name_that_a_party_is_called_by() {
    let (all, names) = (objects(), shipped());
    let [_, (set, _, args)] = pods();
    let namespace = word(&all["Namespace/tessera"], "metadata.name");
    for object in all.values().filter(|o| o["kind"] != "Namespace") {
        assert_eq!(word(object, "metadata.namespace"), namespace, "{object}");
    }
    // The server is called by the name of its service, each worker by the name in its headless service.
    let (server, _) = flag(&args, "--scheduler").split_once(':').unwrap();
    assert!(all.contains_key(&format!("Service/{server}")) && covers(&names, server), "{names:?}");
    let service = word(&set, "spec.serviceName");
    assert_eq!(get(&all[&format!("Service/{service}")], "spec.clusterIP"), "None");
    let replicas = get(&set, "spec.replicas").as_u64().unwrap();
    for number in (0..replicas).chain([replicas + 17]) {
        let advertised = expanded(flag(&args, "--advertise"), number);
        let (host, _) = advertised.split_once(':').unwrap();
        let pod = format!("{}-{number}", word(&set, "metadata.name"));
        assert_eq!(host, format!("{pod}.{service}.{namespace}.svc"));
        assert!(covers(&names, host), "{host} is not in {names:?}");
    }
    // Names of other users of the server.
    let from_elsewhere = format!("{server}.{namespace}.svc");
    assert!(
        covers(&names, &from_elsewhere)
            && covers(&names, &format!("{from_elsewhere}.cluster.local"))
    );
    // The test's own check refuses names that do not match.
    let old = ["tessera".to_owned(), "*.tessera-worker".to_owned()];
    assert!(covers(&old, "tessera") && !covers(&old, "tessera-worker-0.tessera-worker"));
    // The metric that the number of workers follows exists.
    let scaled = yaml::documents(&text("keda.yaml")).remove(0);
    assert_eq!(word(&scaled, "spec.scaleTargetRef.name"), word(&set, "metadata.name"));
    let query = word(&scaled, "spec.triggers.0.metadata.query");
    assert_eq!(query, format!("sum(tessera_cluster_waiting_seconds{{namespace=\"{namespace}\"}})"));
    // The way without cert-manager makes the same names.
    let readme = text("README.md");
    let made = readme.lines().find_map(|l| l.split_once("certificates.sh tessera-tls ")).unwrap().1;
    let made: Vec<&str> = made.trim().split(' ').map(|name| name.trim_matches('\'')).collect();
    assert_eq!(made, names);
    let secret = word(&all["Certificate/tessera"], "spec.secretName");
    assert!(readme.contains(&format!("secret generic {secret} ")), "{readme}");
    for (workload, ..) in pods() {
        let volumes = get(&workload, "spec.template.spec.volumes").as_array().unwrap();
        let tls = volumes.iter().find(|v| v["name"] == "tls").unwrap();
        assert_eq!(word(tls, "secret.secretName"), secret);
    }
}

/// `${NAME:-default}` without the variable.
fn defaulted(value: &str) -> &str {
    let inner = value.strip_prefix("${").and_then(|v| v.strip_suffix('}'));
    inner.map_or(value, |v| v.split_once(":-").unwrap_or_else(|| panic!("{value}")).1)
}

fn gibibytes(text: &str) -> u64 {
    let number = text.strip_suffix("GiB").or(text.strip_suffix("Gi"));
    number.unwrap_or_else(|| panic!("{text}")).parse().unwrap()
}

#[test]
fn processes_of_one_machine_share_its_memory_and_its_disk() {
    let compose = compose();
    let (mut memory, mut disk, mut processes) = (0, 0, 0);
    for service in compose["services"].as_object().unwrap().values() {
        // The service that holds the network runs no tessera.
        let Some(environment) = service.get("environment") else { continue };
        let replicas = service.pointer("/deploy/replicas").map_or(1, |n| n.as_u64().unwrap());
        let percent = |name: &str| -> u64 {
            let value = defaulted(word(environment, name));
            replicas * value.strip_suffix('%').unwrap().parse::<u64>().unwrap()
        };
        memory += percent("TESSERA_MEMORY_LIMIT");
        disk += percent("TESSERA_SPILL_LIMIT");
        processes += replicas;
    }
    // All processes together take the share of memory that one process takes by default. Durable chunks have half of
    // the disk besides.
    assert_eq!(processes, 4);
    assert!(
        (50..=75).contains(&memory) && disk <= 40,
        "{memory} % of memory, {disk} % of the disk"
    );

    // A pod gets the memory that it requests, and its volume has room for what it spills.
    let configuration = objects()["ConfigMap/tessera"].clone();
    let spill = gibibytes(word(&configuration, "data.TESSERA_SPILL_LIMIT"));
    for (workload, container, args) in pods() {
        let resources = &container["resources"];
        let limit = gibibytes(word(resources, "limits.memory"));
        assert_eq!(gibibytes(word(resources, "requests.memory")), limit);
        assert!(!args.iter().any(|a| a.starts_with("--memory-limit")), "{args:?}");
        let volumes = get(&workload, "spec.template.spec.volumes").as_array().unwrap();
        let scratch = volumes.iter().find(|v| v["name"] == "spill").unwrap();
        assert!(spill < gibibytes(word(scratch, "emptyDir.sizeLimit")), "{scratch}");
    }
}

#[test]
fn volumes_belong_to_the_user_of_the_process() {
    let dockerfile = text("Dockerfile");
    let user = dockerfile.lines().find_map(|l| l.strip_prefix("USER ")).unwrap();
    let uid: u64 = dockerfile
        .split(&format!("{user}\n"))
        .find_map(|_| dockerfile.split("useradd --uid ").nth(1)?.split(' ').next()?.parse().ok())
        .unwrap();
    // A new volume gets the owner of the directory that the image has in its place.
    let owned = format!("install --directory --owner={user} --group={user} ");
    let made: Vec<&str> =
        dockerfile.lines().find_map(|l| l.split_once(&owned)).unwrap().1.split(' ').collect();
    let compose = compose();
    let named = compose["volumes"].as_object().unwrap();
    for service in compose["services"].as_object().unwrap().values() {
        for volume in service["volumes"].as_array().into_iter().flatten() {
            let (name, path) = volume.as_str().unwrap().split_once(':').unwrap();
            assert!(named.contains_key(name) && made.contains(&path), "{volume} of {made:?}");
        }
    }
    // The same for the directories that statements may read.
    let args = words(get(&compose, "services.server.command"));
    assert!(made.contains(&flag(&args, "--allow-read")), "{made:?}");

    for (workload, container, _) in pods() {
        let pod = get(&workload, "spec.template.spec");
        let context = &pod["securityContext"];
        let group = context["fsGroup"].as_u64().unwrap();
        assert_eq!(
            (context["runAsUser"].as_u64(), context["runAsGroup"].as_u64()),
            (Some(uid), Some(group))
        );
        let volumes = pod["volumes"].as_array().unwrap();
        let mounts = container["volumeMounts"].as_array().unwrap();
        assert_eq!(mounts.len(), volumes.len());
        for mount in mounts {
            let volume = volumes.iter().find(|v| v["name"] == mount["name"]).unwrap();
            if let Some(secret) = volume.get("secret") {
                // Only owner and group may read it, as the parties demand.
                assert_eq!(secret["defaultMode"].as_u64(), Some(0o440), "{volume}");
            } else {
                assert!(volume.get("emptyDir").is_some() && mount.get("readOnly").is_none());
            }
        }
    }
}

#[test]
fn ports_of_services_are_those_of_the_processes() {
    let all = objects();
    let port = |address: &str| address.rsplit_once(':').unwrap().1.parse::<u64>().unwrap();
    let [(server, server_container, serve), (set, worker_container, work)] = pods();
    let named = |ports: &Value, number: &str| -> BTreeMap<String, u64> {
        let ports = ports.as_array().unwrap();
        ports.iter().map(|p| (word(p, "name").to_owned(), p[number].as_u64().unwrap())).collect()
    };
    let want = BTreeMap::from([
        ("http".to_owned(), port(flag(&serve, "--listen"))),
        ("cluster".to_owned(), port(flag(&serve, "--cluster-listen"))),
    ]);
    assert_eq!(named(&server_container["ports"], "containerPort"), want);
    assert_eq!(named(get(&all["Service/tessera"], "spec.ports"), "port"), want);
    assert_eq!(port(flag(&work, "--scheduler")), want["cluster"]);
    for probe in ["readinessProbe", "livenessProbe"] {
        assert!(want.contains_key(word(&server_container[probe], "httpGet.port")));
        // The server has a certificate, so it speaks HTTPS.
        assert_eq!(word(&server_container[probe], "httpGet.scheme"), "HTTPS");
    }
    let want = BTreeMap::from([("flight".to_owned(), port(flag(&work, "--listen")))]);
    assert_eq!(named(&worker_container["ports"], "containerPort"), want);
    assert_eq!(named(get(&all["Service/tessera-worker"], "spec.ports"), "port"), want);
    assert_eq!(port(flag(&work, "--advertise")), want["flight"]);
    for (workload, service) in [(&server, "Service/tessera"), (&set, "Service/tessera-worker")] {
        let labels = get(workload, "spec.template.metadata.labels");
        assert_eq!(get(workload, "spec.selector.matchLabels"), labels);
        assert_eq!(get(&all[service], "spec.selector"), labels);
    }
    // Compose: the port is published by the service that holds the network, to this machine alone.
    let compose = compose();
    let args = words(get(&compose, "services.server.command"));
    let http = port(flag(&args, "--listen"));
    assert_eq!(
        words(get(&compose, "services.network.ports")),
        [format!("127.0.0.1:{http}:{http}")]
    );
    let args = words(get(&compose, "services.worker.command"));
    assert_eq!(flag(&args, "--scheduler"), "127.0.0.1:50050", "where a server accepts workers");
    for service in ["server", "worker"] {
        assert_eq!(word(&compose, &format!("services.{service}.network_mode")), "service:network");
    }
}

/// The output of the binary.
fn said(args: &[&str], environment: &[(String, String)]) -> String {
    let mut command = Command::new(binary());
    command.args(args).env_clear().envs(environment.iter().cloned()).stdin(Stdio::null());
    let out = command.output().unwrap();
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn the_binary_has_the_flags_and_the_settings() {
    let has = |help: &str, flag: &str| {
        help.split_whitespace().any(|word| word.trim_end_matches(',') == flag)
    };
    let compose = compose();
    let mut commands: Vec<Vec<String>> = pods().into_iter().map(|(_, _, args)| args).collect();
    for service in ["server", "worker"] {
        commands.push(words(get(&compose, &format!("services.{service}.command"))));
    }
    for args in &commands {
        let verb = args.iter().find(|a| ["serve", "worker"].contains(&a.as_str())).unwrap();
        let help = said(&[verb, "--help"], &[]);
        for arg in args.iter().filter(|a| a.starts_with("--")) {
            let name = arg.split('=').next().unwrap();
            assert!(has(&help, name), "{name} is no flag of `tessera {verb}`: {help}");
        }
    }
    assert!(!has(&said(&["worker", "--help"], &[]), "--cluster-listen"), "what is no flag is seen");
    // Settings in the environment.
    let configuration = objects()["ConfigMap/tessera"]["data"].as_object().unwrap().clone();
    let of_pods = pods()
        .into_iter()
        .flat_map(|(_, container, _)| container["env"].as_array().unwrap().clone());
    let of_pods = of_pods.map(|v| word(&v, "name").to_owned());
    let of_compose =
        ["server", "worker"].map(|s| get(&compose, &format!("services.{s}.environment")).clone());
    let of_compose = of_compose.iter().flat_map(|e| e.as_object().unwrap().keys()).cloned();
    let names = configuration.keys().cloned().chain(of_pods).chain(of_compose);
    let names: Vec<String> = names.filter(|name| name.starts_with("TESSERA_")).collect();
    assert!(names.len() > 10, "{names:?}");
    let told = said(&["config"], &[]);
    for name in &names {
        let key = name.strip_prefix("TESSERA_").unwrap().to_lowercase().replace('_', "-");
        let is_told =
            told.lines().any(|l| l.trim_start_matches("# ").split([' ', '=']).next() == Some(&key));
        assert!(is_told, "{name} is no setting: {told}");
    }
    // A process has the time to end that it may take.
    let [_, (set, ..)] = pods();
    let grace = get(&set, "spec.template.spec.terminationGracePeriodSeconds").as_u64().unwrap();
    assert!(grace > LEAVES_S, "{grace}");
    let grace = word(&compose, "services.worker.stop_grace_period").strip_suffix('s').unwrap();
    assert!(grace.parse::<u64>().unwrap() > LEAVES_S, "{grace}");
}
