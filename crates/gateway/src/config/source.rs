//! Sources: the places that a configuration comes from.
//! Invariant: the order of the layers is the order of [`gather`].

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::endpoints;
use super::error::{ConfigError, Origin};
use super::layer::{self, Layer};
use super::{DEFAULTS, FILE_NAME, proxy};

/// Which file to read.
#[derive(Clone, Debug, Default)]
pub enum ConfigFile {
    /// This one; it must be there.
    At(PathBuf),
    /// This one, if it is there.
    IfThere(PathBuf),
    /// None.
    #[default]
    Nowhere,
}

impl ConfigFile {
    /// The file that will be read.
    pub fn path(&self) -> Option<&Path> {
        match self {
            ConfigFile::At(path) => Some(path),
            ConfigFile::IfThere(path) => path.exists().then_some(path),
            ConfigFile::Nowhere => None,
        }
    }
}

/// What the flags of the command line said.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// `--data`
    pub data: Option<PathBuf>,
    /// `--listen`
    pub listen: Option<SocketAddr>,
    /// `--store`
    pub store: Option<String>,
    /// `--allow-unsafe-redis`
    pub allow_unsafe_redis: bool,
    /// `--insecure-listen`
    pub insecure_listen: bool,
    /// `--dev`: plain HTTP and destinations on this machine.
    pub dev: bool,
}

/// Where a configuration comes from.
#[derive(Clone, Debug, Default)]
pub struct ConfigSources {
    /// The operator's file.
    pub file: ConfigFile,
    /// The environment.
    pub env: Vec<(String, String)>,
    /// The flags.
    pub options: Options,
}

impl ConfigSources {
    /// The given file or else `./entrega.toml`, and this process's environment.
    pub fn of_process(file: Option<PathBuf>, options: Options) -> ConfigSources {
        let env =
            std::env::vars_os().filter_map(|(name, text)| Some((name.into_string().ok()?, text.into_string().ok()?)));
        let file = file.map_or_else(|| ConfigFile::IfThere(PathBuf::from(FILE_NAME)), ConfigFile::At);
        ConfigSources { file, env: env.collect(), options }
    }
}

/// Names that are known outside of Entrega, and the key that each stands for.
const PLAIN_NAMES: [(&str, &[&str]); 1] = [("SMTP_URL", &["transports", "main", "url"])];

/// The Redis that the plain names of the environment name.
fn redis_of(env: &[(String, String)]) -> Option<(Table, Origin)> {
    let given = |name: &str| env.iter().find(|(given, text)| given == name && !text.is_empty()).map(|(_, text)| text);
    let (host, port) = (given("REDIS_HOST")?, given("REDIS_PORT").map_or("6379", String::as_str));
    let url = Value::from(format!("redis://{host}:{port}"));
    Some((layer::at(&["store", "kind"], url), Origin::Env("REDIS_HOST".into())))
}

/// Puts the layers together.
pub(super) fn gather(sources: &ConfigSources) -> Result<Vec<Layer>, ConfigError> {
    let mut layers = vec![Layer::new(parse(Path::new("defaults.toml"), DEFAULTS)?, Origin::Defaults)];
    if let Some(file) = sources.file.path() {
        let unreadable = |source| ConfigError::Unreadable { file: file.into(), source };
        let text = std::fs::read_to_string(file).map_err(unreadable)?;
        let layer = Layer::new(parse(file, &text)?, Origin::File(file.into(), 0));
        layers.push(layer.with_lines(&text));
    }
    let lanes: Vec<String> = layers.iter().flat_map(Layer::lanes).collect();
    let mut env: Vec<&(String, String)> = sources.env.iter().collect();
    env.sort();
    for (name, text) in &env {
        if let Some(layer) = layer::from_variable(name, text, &lanes)? {
            layers.push(Layer::new(layer, Origin::Env(name.clone())));
        }
    }
    for (name, path) in PLAIN_NAMES {
        let given = sources.env.iter().find(|(given, text)| given == name && !text.is_empty());
        if let Some((_, text)) = given {
            layers.push(Layer::new(layer::at(path, Value::from(text.as_str())), Origin::Env(name.to_owned())));
        }
    }
    for (name, path, counts) in proxy::PLAIN_NAMES {
        let given = sources.env.iter().find(|(given, text)| given == name && !text.is_empty());
        if let Some((_, text)) = given {
            layers.push(Layer::new(layer::at(path, proxy::plain_value(text, counts)), Origin::Env(name.to_owned())));
        }
    }
    if let Some((layer, origin)) = redis_of(&sources.env) {
        layers.push(Layer::new(layer, origin));
    }
    for (name, text) in env {
        if let Some(layer) = endpoints::from_variable(name, text) {
            layers.push(Layer::new(layer, Origin::Env(name.clone())));
        }
    }
    for (flag, section, key, value) in flags(&sources.options) {
        let section_table = Table::from_iter([(key.to_owned(), value)]);
        layers.push(Layer::new(
            Table::from_iter([(section.to_owned(), Value::Table(section_table))]),
            Origin::Flag(flag),
        ));
    }
    Ok(layers)
}

fn parse(file: &Path, text: &str) -> Result<Table, ConfigError> {
    text.parse().map_err(|source| ConfigError::Syntax { file: file.into(), source: Box::new(source) })
}

fn flags(options: &Options) -> impl Iterator<Item = (&'static str, &'static str, &'static str, Value)> {
    let data = options.data.as_ref().map(|path| Value::from(path.to_string_lossy().as_ref()));
    let listen = options.listen.map(|address| Value::from(address.to_string()));
    let store = options.store.as_deref().map(Value::from);
    let insecure_listen = options.insecure_listen.then_some(Value::from(true));
    let allow_unsafe_redis = options.allow_unsafe_redis.then_some(Value::from(true));
    [
        data.map(|value| ("--data", "store", "data", value)),
        listen.map(|value| ("--listen", "server", "listen", value)),
        store.map(|value| ("--store", "store", "kind", value)),
        allow_unsafe_redis.map(|value| ("--allow-unsafe-redis", "store", "allow_unsafe_redis", value)),
        insecure_listen.map(|value| ("--insecure-listen", "server", "insecure_listen", value)),
    ]
    .into_iter()
    .flatten()
}
