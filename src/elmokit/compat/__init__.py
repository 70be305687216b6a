"""Old names on the one engine: code for AllenNLP, bilm-tf, TF-Hub and simple_elmo runs with its import changed.

    allennlp.modules.elmo, allennlp.commands.elmo   ->  elmokit.compat.allennlp
    bilm                                            ->  elmokit.compat.bilm_tf
    tensorflow_hub as hub                           ->  elmokit.compat.tf_hub as hub
    simple_elmo                                     ->  elmokit.compat.simple_elmo

docs/migrating.md lists what differs from the old libraries, and why.
"""
