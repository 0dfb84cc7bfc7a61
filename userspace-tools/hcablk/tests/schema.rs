// SPDX-License-Identifier: GPL-2.0

//! The published schema of the JSON matches the code, and all examples match it.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]

use std::path::{Path, PathBuf};

use hcablk::error::Error;
use hcablk::output::{Report, VERSION};
use schemars::SchemaGenerator;
use serde_json::{json, Map, Value};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The schema of the code.
fn generated() -> Value {
    let mut generator = SchemaGenerator::default();
    let report = generator.subschema_for::<Report>();
    let error = generator.subschema_for::<Error>();
    let mut definitions = Value::Object(generator.take_definitions(true));
    definitions["Report"]["anyOf"]
        .as_array_mut()
        .unwrap()
        .push(json!({
            "description": "Any command that failed, on standard error.",
            "type": "object",
            "properties": { "error": error },
            "required": ["error"],
        }));
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": format!("Output of hcablk --json, version {VERSION}"),
        "description": "Commands that keep running (stats with an interval, events) print such an object on each line. Within a version members are added, and never renamed or removed.",
        "type": "object",
        "properties": {
            "version": { "const": VERSION },
            "notes": {
                "description": "Remarks.",
                "type": "array",
                "items": { "type": "string" },
            },
        },
        "required": ["version"],
        "allOf": [report],
        "$defs": definitions,
    })
}

fn published() -> PathBuf {
    folder().join(format!("schema/hcablk-{VERSION}.schema.json"))
}

#[test]
fn the_published_schema_is_that_of_the_code() {
    let text = serde_json::to_string_pretty(&generated()).unwrap() + "\n";
    if std::env::var_os("HCABLK_UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(published().parent().unwrap()).unwrap();
        std::fs::write(published(), &text).unwrap();
    }
    let file = std::fs::read_to_string(published()).unwrap_or_default();
    assert!(
        text == file,
        "the JSON has changed: HCABLK_UPDATE_GOLDEN=1, and look whether members were only added"
    );
}

/// Checks a value against a schema; `known` collects the names of the members in the schema. A keyword of the schema
/// that this function does not know is an error.
fn check(
    root: &Value,
    schema: &Value,
    value: &Value,
    known: &mut Vec<String>,
) -> Result<(), String> {
    let Value::Object(schema) = schema else {
        return if *schema == json!(true) {
            Ok(())
        } else {
            Err("nothing is allowed".to_owned())
        };
    };
    for (keyword, rule) in schema {
        match keyword.as_str() {
            "$ref" => {
                let path = rule.as_str().unwrap().strip_prefix('#').unwrap();
                check(root, root.pointer(path).unwrap(), value, known)?;
            }
            "allOf" => {
                for one in rule.as_array().unwrap() {
                    check(root, one, value, known)?;
                }
            }
            "anyOf" | "oneOf" => check_any(root, rule, value, known)?,
            "const" if rule != value => return Err(format!("{value} is not {rule}")),
            "enum" if !rule.as_array().unwrap().contains(value) => {
                return Err(format!("{value} is none of {rule}"));
            }
            "type" => check_type(rule, value)?,
            "minimum" if value.is_number() && value.as_f64() < rule.as_f64() => {
                return Err(format!("{value} is too small"))
            }
            "maximum" if value.is_number() && value.as_f64() > rule.as_f64() => {
                return Err(format!("{value} is too large"))
            }
            "required" => {
                for name in rule.as_array().unwrap() {
                    if value.get(name.as_str().unwrap()).is_none() {
                        return Err(format!("{name} is missing"));
                    }
                }
            }
            "properties" => {
                for (name, rule) in rule.as_object().unwrap() {
                    known.push(name.clone());
                    if let Some(member) = value.get(name) {
                        check_strictly(root, rule, member)
                            .map_err(|why| format!("{name}: {why}"))?;
                    }
                }
            }
            "items" => {
                for item in value.as_array().into_iter().flatten() {
                    check_strictly(root, rule, item)?;
                }
            }
            "additionalProperties" => {
                for (name, member) in value.as_object().into_iter().flatten() {
                    let properties = schema.get("properties").and_then(Value::as_object);
                    if properties.is_none_or(|properties| !properties.contains_key(name)) {
                        known.push(name.clone());
                        check_strictly(root, rule, member)
                            .map_err(|why| format!("{name}: {why}"))?;
                    }
                }
            }
            "const" | "enum" | "minimum" | "maximum" | "description" | "title" | "format"
            | "default" | "$schema" | "$defs" => (),
            other => panic!("this test does not know {other}"),
        }
    }
    Ok(())
}

fn check_type(rule: &Value, value: &Value) -> Result<(), String> {
    let is = |name: &Value| match name.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "null" => value.is_null(),
        other => panic!("type {other}"),
    };
    let fits = match rule {
        Value::Array(types) => types.iter().any(is),
        one => is(one),
    };
    if fits {
        Ok(())
    } else {
        Err(format!("{value} is no {rule}"))
    }
}

fn check_any(
    root: &Value,
    rule: &Value,
    value: &Value,
    known: &mut Vec<String>,
) -> Result<(), String> {
    let mut failures = Vec::new();
    // Checks the alternative that shares the most members with the value.
    let mut best: Option<Vec<String>> = None;
    let count = |names: &[String]| {
        names
            .iter()
            .filter(|name| value.get(name).is_some())
            .count()
    };
    for one in rule.as_array().unwrap() {
        let mut names = Vec::new();
        match check(root, one, value, &mut names) {
            Ok(()) if best.as_ref().is_none_or(|best| count(best) < count(&names)) => {
                best = Some(names);
            }
            Ok(()) => (),
            Err(why) => failures.push(why),
        }
    }
    known.extend(best.ok_or_else(|| format!("none of: {}", failures.join("; ")))?);
    Ok(())
}

/// Checks that a value matches a schema, and has no member that is not in the schema.
fn check_strictly(root: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    let mut known = Vec::new();
    check(root, schema, value, &mut known)?;
    let members = value.as_object().into_iter().flat_map(Map::keys);
    let unknown: Vec<_> = members.filter(|name| !known.contains(name)).collect();
    if unknown.is_empty() || *schema == json!(true) {
        Ok(())
    } else {
        Err(format!("the schema does not know {unknown:?}"))
    }
}

#[test]
fn all_examples_keep_to_the_schema() {
    let schema = generated();
    let mut examples = 0;
    for entry in std::fs::read_dir(folder().join("tests/golden")).unwrap() {
        let file = entry.unwrap().path();
        let extension = file.extension().unwrap().to_str().unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        let values: Vec<Value> = match extension {
            "json" => vec![serde_json::from_str(&text).unwrap()],
            "jsonl" => text
                .lines()
                .map(|line| serde_json::from_str(line).unwrap())
                .collect(),
            _ => continue,
        };
        for value in values {
            check_strictly(&schema, &schema, &value)
                .unwrap_or_else(|why| panic!("{}: {why}", file.display()));
            examples += 1;
        }
    }
    assert!(examples > 25, "{examples}");
}

#[test]
fn wrong_documents_do_not_match_the_schema() {
    let schema = generated();
    for wrong in [
        json!({ "devices": [] }),
        json!({ "version": 2, "devices": [] }),
        json!({ "version": 1 }),
        json!({ "version": 1, "devices": {} }),
        json!({ "version": 1, "devices": [], "other": 1 }),
        json!({ "version": 1, "host_id": 5, "source": "file" }),
        json!({ "version": 1, "error": { "kind": "bad", "message": "x" } }),
        json!({ "version": 1, "result": { "action": "connect", "name": "x" } }),
    ] {
        assert!(check_strictly(&schema, &schema, &wrong).is_err(), "{wrong}");
    }
    let right = json!({ "version": 1, "host_id": "5f2c1d6e-8a0b-4c3d-9e7f-001122334455", "source": "file" });
    assert_eq!(check_strictly(&schema, &schema, &right), Ok(()));
}

#[test]
fn the_documents_name_the_schema() {
    let docs = folder().join("../../docs/reference/command.md");
    let text = std::fs::read_to_string(docs).unwrap();
    let name = published();
    let name = Path::new(&name).file_name().unwrap().to_str().unwrap();
    assert!(text.contains(name));
}
