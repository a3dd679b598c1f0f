# `terraform init && terraform test`, without AWS: the provider's schema and no call. tests/live/aws/test_terraform.py
# runs the same, and holds each policy against packaging/iam.

mock_provider "aws" {
  mock_data "aws_caller_identity" {
    defaults = { account_id = "123456789012" }
  }
  mock_data "aws_partition" {
    defaults = { partition = "aws-us-gov" }
  }
  mock_data "aws_region" {
    defaults = { region = "us-gov-west-1" }
  }
  mock_resource "aws_iam_policy" {
    defaults = { arn = "arn:aws-us-gov:iam::123456789012:policy/mocked" }
  }
}

run "nothing_asked_for_is_nothing_made" {
  command = plan
  assert {
    condition     = length(output.policies) == 0 && output.config == "" && length(aws_s3_bucket.evidence) == 0
    error_message = "Without platform, evidence and events the module makes nothing."
  }
}

run "parallelcluster" {
  command = plan
  variables {
    platform   = "parallelcluster"
    node_roles = ["compute-a", "compute-b"]
  }
  assert {
    condition     = toset(keys(aws_iam_role_policy_attachment.this)) == toset(["parallelcluster-node compute-a", "parallelcluster-node compute-b"])
    error_message = "Each role of the nodes has the policy of a node, and no other."
  }
}

run "everything_from_the_node" {
  command = apply
  variables {
    name                = "train-a"
    platform            = "ec2"
    instance_profile    = true
    controller_roles    = ["head"]
    controller_features = ["topology", "ultraservers"]
    evidence            = { bucket = "site-evidence", prefix = "train-a" }
    events = {
      bus        = "healthd"
      target_arn = "arn:aws-us-gov:sns:us-gov-west-1:123456789012:oncall"
      clusters   = ["train-a"]
    }
  }
  assert {
    condition     = toset(keys(output.policies)) == toset(["ec2-node", "evidence-node", "events-node", "ec2-controller", "topology-controller", "ultraservers-controller"])
    error_message = "The node and the controller have their policies."
  }
  assert {
    condition     = toset(keys(aws_iam_role_policy_attachment.node)) == toset(["ec2-node", "evidence-node", "events-node"])
    error_message = "The role of the instance profile has the policies of a node."
  }
  assert {
    condition     = output.config == "[evidence]\nupload_to = \"s3://site-evidence/train-a\"\n[notify]\neventbridge_bus = \"arn:aws-us-gov:events:us-gov-west-1:123456789012:event-bus/healthd\"\n"
    error_message = "The settings that go with it."
  }
  assert {
    condition     = output.instance_profile == "train-a-node"
    error_message = "The instance profile is named after the cluster."
  }
  assert {
    condition     = alltrue([for each in [aws_s3_bucket_public_access_block.evidence[0]] : each.block_public_acls && each.block_public_policy && each.ignore_public_acls && each.restrict_public_buckets])
    error_message = "No one outside reads evidence."
  }
}

run "from_the_controller" {
  command = plan
  variables {
    platform            = "hyperpod"
    act_from            = "controller"
    hyperpod_cluster_id = "abc123def456"
    node_roles          = ["workers"]
    controller_roles    = ["head"]
    evidence            = { bucket = "site-evidence", create = false }
    events              = { bus = "default", create = false }
  }
  assert {
    condition     = toset(keys(aws_iam_role_policy_attachment.this)) == toset(["evidence-node workers", "events-node workers", "hyperpod-controller head"])
    error_message = "A node has no right to reboot or replace."
  }
  assert {
    condition     = length(aws_s3_bucket.evidence) == 0 && length(aws_cloudwatch_event_bus.this) == 0 && length(aws_cloudwatch_event_rule.nodes) == 0
    error_message = "What is there already is not made."
  }
}

run "hyperpod_without_its_cluster_is_refused" {
  command = plan
  variables {
    platform   = "hyperpod"
    node_roles = ["workers"]
  }
  expect_failures = [aws_iam_policy.this]
}

run "an_unknown_platform_is_refused" {
  command = plan
  variables {
    platform = "eks"
  }
  expect_failures = [var.platform]
}

run "an_unknown_act_from_is_refused" {
  command = plan
  variables {
    act_from = "head"
  }
  expect_failures = [var.act_from]
}

run "a_prefix_that_ends_with_a_slash_is_refused" {
  command = plan
  variables {
    evidence = { bucket = "site-evidence", prefix = "train-a/" }
  }
  expect_failures = [var.evidence]
}

run "the_default_bus_is_not_made_again" {
  command = plan
  variables {
    events = { bus = "default" }
  }
  expect_failures = [var.events]
}

run "an_unknown_feature_is_refused" {
  command = plan
  variables {
    controller_features = ["weather"]
  }
  expect_failures = [var.controller_features]
}
